# Workers that name themselves, over real gRPC.

use Test::Nginx::Socket 'no_plan';

add_block_preprocessor(sub {
    my ($block) = @_;

    my $options = $block->register // '';
    chomp $options;
    $options = "token=fake $options" unless $options =~ /token/;

    defined $block->http_config
        or $block->set_value(http_config => <<"END");
pd_zone pd:1m;
pd_cluster chat { register on $options; queue 10 timeout=2s; }
server {
    listen {{register}} http2;
    location = /pd.v1.Dispatcher/Register { pd_register chat; }
}
END
    defined $block->config
        or $block->set_value(config => 'location /v1/ { pd_pass chat; }
        location = /ready { pd_health ready; }
        location = /pd.v1.Dispatcher/Register { pd_register chat; }');
    defined $block->request
        or $block->set_value(request => <<'END');
POST /v1/completions
{"model":"m","prompt":"hello","stream":true}
END
});

run_tests();

__DATA__

=== TEST 1: a pair that nobody has configured
--- worker
p0 role=prefill register={{register}}
d0 role=decode register={{register}}
--- steps
worker p0 expect registered lease=30000
worker d0 expect registered lease=30000
client request
client expect t2
--- error_log eval
[qr/pd: worker "127.0.0.1:\d+" has registered with cluster "chat"/,
 qr/pd: attached to worker "127.0.0.1:\d+": decode/]



=== TEST 2: all processes dial back
--- workers: 2
--- worker
m0 register={{register}}
--- steps
worker m0 expect attach
worker m0 expect attach



=== TEST 3: an address of its own
--- worker
m0 register={{register}} port=0 address=127.0.0.1:1
--- steps
worker m0 expect registered
nginx expect /cannot attach to worker "127.0.0.1:1"/



=== TEST 4: "any" is the caller's address
--- worker
m0 register={{register}} address=0.0.0.0:7
--- steps
worker m0 expect registered
nginx expect /worker "127.0.0.1:7" has registered/



=== TEST 5: the token
--- register: token=open-sesame
--- worker
m0 register={{register}} token=open-sesame
m1 register={{register}} token=open-sesamE
m2 register={{register}} token=
--- steps
worker m0 expect registered lease
worker m1 expect not registered: PERMISSION_DENIED "the token is wrong"
worker m2 expect not registered: PERMISSION_DENIED "the token is wrong"
nginx expect refused a registration from 127.0.0.1: the token is wrong



=== TEST 6: a lease ends unless it is renewed
--- timeout: 10
--- register: lease=1s
--- worker
m0 register={{register}}
--- steps
worker m0 expect registered lease=1000
worker m0 expect attach
sleep 1.7
nginx lacks the lease of worker
worker m0 stop
nginx expect /the lease of worker "127.0.0.1:\d+" has ended/
worker m0 continue
nginx expect has registered
worker m0 expect attach



=== TEST 7: a worker that leaves is forgotten at once
--- worker
m0 register={{register}}
--- request_client2
GET /ready
--- steps
worker m0 expect attach
worker m0 leave
worker m0 expect detach
client2 request
client2 expect waiting
--- error_log
has left cluster "chat"



=== TEST 8: but what it is doing, it ends
--- worker
m0 register={{register}} gate=token
--- steps
client request
client expect t0
worker m0 leave
worker m0 expect left
worker m0 release
client expect t1
worker m0 release
client expect t2
worker m0 expect detach
--- no_worker_log
cancel



=== TEST 9: addresses that are none
--- worker
m0 register={{register}} address=worker.example:9000
m1 register={{register}} address=127.0.0.1
m2 register={{register}} address=:99999
m3 register={{register}} address=
--- steps
worker m0 expect not registered: INVALID_ARGUMENT "the address is not IP:PORT"
worker m1 expect not registered: INVALID_ARGUMENT "the address is not IP:PORT"
worker m2 expect not registered: INVALID_ARGUMENT "the address is not IP:PORT"
worker m3 expect not registered: INVALID_ARGUMENT "the address is not IP:PORT"



=== TEST 10: bytes that are no registration
--- worker
m0 register={{register}} register_raw=ffffffff
m1 register={{register}} register_raw=
m2 register={{register}} model=
--- steps
worker m0 expect not registered: INVALID_ARGUMENT "the message cannot be read"
worker m1 expect not registered: PERMISSION_DENIED
worker m2 expect not registered: INVALID_ARGUMENT "its hello names no model



=== TEST 11: a message that went to a file, and one that is too long
--- worker
m0 register={{register}} padding=40000
m1 register={{register}} padding=70000
--- steps
worker m0 expect registered lease
worker m1 expect not registered: INVALID_ARGUMENT "no message of gRPC's form"



=== TEST 12: plain HTTP
--- request
POST /pd.v1.Dispatcher/Register
x
--- error_code: 400



=== TEST 13: leases outlive a restart in the state file
--- workers: 1
--- http_config
pd_zone pd:1m state={{root}}/pd.state;
pd_cluster "chat room" { register on token=fake lease=1h; queue 10 timeout=2s; }
server {
    listen {{register}} http2;
    location = /pd.v1.Dispatcher/Register { pd_register "chat room"; }
}
--- config
location /v1/ { pd_pass "chat room"; }
--- worker
m0 register={{register}}
--- steps
worker m0 expect attach
nginx restart
worker m0 expect detach
worker m0 expect attach
client request
client expect t2



=== TEST 14: a file that is something else is left alone
--- workers: 1
--- http_config
pd_zone pd:1m state={{root}}/nginx.conf;
pd_cluster chat { register on token=fake lease=1h; queue 10 timeout=2s; }
server {
    listen {{register}} http2;
    location = /pd.v1.Dispatcher/Register { pd_register chat; }
}
--- worker
m0 register={{register}}
--- steps
nginx expect /"[^"]*nginx.conf" is no state file and is left alone/
worker m0 expect attach
nginx restart
worker m0 expect detach
nginx expect is no state file and is left alone



=== TEST 15: a worker that has left is not in the file
--- workers: 1
--- http_config
pd_zone pd:1m state={{root}}/pd.state;
pd_cluster chat { register on token=fake lease=1h; queue 10 timeout=300ms; }
server {
    listen {{register}} http2;
    location = /pd.v1.Dispatcher/Register { pd_register chat; }
}
--- worker
m0 register={{register}}
--- steps
worker m0 expect attach
worker m0 leave
worker m0 expect left
nginx restart
client request
client finish
--- error_code: 503



=== TEST 16: a name is one worker's, and whoever was there first keeps it
--- worker
m0 register={{register}} instance=twin
--- steps
worker m0 expect attach
nginx expect attached
worker m1 start register={{register}} instance=twin
worker m1 expect not registered: ALREADY_EXISTS "the name is another worker's"
nginx expect /refused a registration from 127.0.0.1: "127.0.0.1:\d+" claims the name "twin" of worker "127.0.0.1:\d+"/
client request
client expect t2
worker m0 kill
nginx expect lost worker
worker m1 expect registered
worker m1 expect attach
--- no_worker_log
protocol error



=== TEST 17: in the file as well
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{m0}}; worker {{m1}}; }
--- config
location /v1/ { pd_pass chat; }
--- worker
m0 instance=twin
m1 instance=twin
--- steps
nginx expect attached
nginx expect /\[error\].*is not used: it claims the name "twin" of worker "127.0.0.1:\d+"/
nginx expect /\[info\].*it claims the name of another worker/
client request
client expect t2



=== TEST 18: a zone that contradicts the file
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{m0}} zone=rack1; worker {{m1}} zone=rack2; }
--- config
location /v1/ { pd_pass chat; }
--- worker
m0 zone=rack2
m1 zone=rack2
--- steps
nginx expect is not used: the configuration puts it into zone "rack1", and it runs with another --zone
client1 request
client1 expect t2
client2 request
client2 expect t2
--- no_worker_log
m0 submit



=== TEST 19: without a token, it takes a client certificate
--- http_config
pd_zone pd:1m;
pd_cluster chat { register on; queue 10 timeout=2s; }
server {
    listen {{register}} http2;
    location = /pd.v1.Dispatcher/Register { pd_register chat; }
}
--- worker
m0 register={{register}}
--- steps
worker m0 expect not registered: PERMISSION_DENIED "it has no client certificate, and there is no token"
nginx expect refused a registration from 127.0.0.1: it has no client certificate
--- no_worker_log
m0 registered



=== TEST 20: which the server has verified
--- http_config
pd_zone pd:1m;
pd_cluster chat { register on; queue 10 timeout=2s; }
server {
    listen {{register}} ssl http2;
    ssl_certificate {{root}}/tls/host.pem;
    ssl_certificate_key {{root}}/tls/host.key;
    ssl_client_certificate {{root}}/tls/host.pem;
    ssl_verify_client optional;
    location = /pd.v1.Dispatcher/Register { pd_register chat; }
}
--- worker
m0 register={{register}} tls={{root}}/tls/host
m1 register={{register}} tls={{root}}/tls/host anonymous=1
--- steps
worker m0 expect registered
worker m1 expect not registered: PERMISSION_DENIED
client request
client expect t2
