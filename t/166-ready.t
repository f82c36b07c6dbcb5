# Whether the frontend is fit: how its requests have ended, and the others'.

use Test::Nginx::Socket 'no_plan';

add_block_preprocessor(sub {
    my ($block) = @_;

    my $readiness = $block->readiness // 'requests=10 out=1s';
    my $zone = $block->zone // 'pd:1m';
    my $cluster = $block->cluster // 'worker {{m0}};';
    chomp($readiness, $zone, $cluster);

    defined $block->config or $block->set_value(config => <<'END');
location /v1/ { pd_pass chat; }
location = /health/ready { pd_health ready; }
location = /metrics { pd_metrics; }
END
    defined $block->http_config
        or $block->set_value(http_config => <<"END");
pd_zone $zone;
pd_cluster chat {
    $cluster
    ejection faults=1000;
    readiness $readiness;
}
END
    defined $block->request or $block->set_value(request => <<'END');
POST /v1/completions
{"model":"m","prompt":"hello","max_tokens":3}
END
    $block->set_value(request_client_metrics => "GET /metrics\n");
    $block->set_value($_ => "GET /health/ready HTTP/1.1\n")
        for qw(request_client_ready request_client_ready2);
    $block->set_value($_ => "Connection: keep-alive\n")
        for qw(more_headers_client_ready more_headers_client_ready2
               more_headers_client_kept);
});

run_tests();

__DATA__

=== TEST 1: too few finish, clearly fewer than the others': it leaves; canaries bring it back
--- worker
m0 refuse=INTERNAL:20 others=100:99|100:97|100:98
--- steps
nginx ask 10 500
nginx expect this frontend takes itself out: 0 of 10 requests of cluster "chat" have finished, and 98.00 % of the other frontends'
client_ready request
client_ready expect {"status":"away","clusters":{"chat":"away"}}
client_ready status 503
client_ready header Connection: close
client_metrics request
client_metrics expect pd_window_requests{cluster="chat",verdict="failed"} 10
client_metrics expect pd_degraded{cluster="chat"} 0
client_metrics expect pd_away{cluster="chat"} 1
client_kept request
client_kept finish
client_kept status 200
client_kept header Connection: close
worker m0 expect /told \d\/1\d away/
nginx expect this frontend is back in cluster "chat": 20 of 20 canaries sang
client_ready2 request
client_ready2 expect {"status":"ready","clusters":{"chat":"ready"}}
client_ready2 status 200
client_ready2 header Connection: keep-alive
worker m0 expect told 0/0



=== TEST 2: how few are too few, and how much better the others have to be
--- http_config
pd_zone pd:1m;
pd_cluster few    { worker {{few}};    ejection faults=1000; readiness requests=10 out=1h; }
pd_cluster enough { worker {{enough}}; ejection faults=1000; readiness requests=20 out=1h; }
pd_cluster clear  { worker {{clear}};  ejection faults=1000; readiness requests=20 out=1h; }
pd_cluster close  { worker {{close}};  ejection faults=1000; readiness requests=20 out=1h; }
pd_cluster unsaid { worker {{unsaid}}; ejection faults=1000; readiness requests=10 out=1h; }
pd_cluster half   { worker {{half}};   ejection faults=1000; readiness requests=10 out=1h; }
pd_cluster less   { worker {{less}};   ejection faults=1000; readiness requests=10 out=1h; }
pd_cluster off    { worker {{off}};    ejection faults=1000; readiness off; }
--- config
location /few/    { pd_pass few; }
location /enough/ { pd_pass enough; }
location /clear/  { pd_pass clear; }
location /close/  { pd_pass close; }
location /unsaid/ { pd_pass unsaid; }
location /half/   { pd_pass half; }
location /less/   { pd_pass less; }
location /off/    { pd_pass off; }
location = /health/ready { pd_health ready; }
--- worker
few    refuse=INTERNAL:18 others=100:99|100:99
enough refuse=INTERNAL:2  others=100:100|100:100
clear  refuse=INTERNAL:4  others=100:95|100:95
close  refuse=INTERNAL:4  others=1000:949|1000:949
unsaid refuse=INTERNAL:20 others=9:9|9:9
half   refuse=INTERNAL:20 others=100:99|100:99:away|100:99:away
less   refuse=INTERNAL:20 others=100:99|100:99|100:99:away|100:99:away
off    refuse=INTERNAL:20 others=100:99|100:99
--- request_client_few
POST /few/completions
{"model":"m","prompt":"hello","max_tokens":3}
--- request_client_enough
POST /enough/completions
{"model":"m","prompt":"hello","max_tokens":3}
--- request_client_clear
POST /clear/completions
{"model":"m","prompt":"hello","max_tokens":3}
--- request_client_close
POST /close/completions
{"model":"m","prompt":"hello","max_tokens":3}
--- request_client_unsaid
POST /unsaid/completions
{"model":"m","prompt":"hello","max_tokens":3}
--- request_client_half
POST /half/completions
{"model":"m","prompt":"hello","max_tokens":3}
--- request_client_less
POST /less/completions
{"model":"m","prompt":"hello","max_tokens":3}
--- request_client_off
POST /off/completions
{"model":"m","prompt":"hello","max_tokens":3}
--- steps
worker few expect heartbeat
worker close expect heartbeat
worker unsaid expect heartbeat
worker half expect heartbeat
sleep 0.1
nginx ask 9 500 client_few
nginx ask 1 500 client_enough
nginx ask 19 200 client_enough
nginx ask 2 500 client_clear
nginx ask 18 200 client_clear
nginx ask 2 500 client_close
nginx ask 18 200 client_close
nginx ask 10 500 client_unsaid
nginx ask 10 500 client_half
nginx ask 10 500 client_less
nginx ask 10 500 client_off
worker few expect told 0/9
worker enough expect told 19/20
worker clear expect told 18/20 away
worker less expect told 0/10 away
sleep 1.1
client_ready request
client_ready expect {"status":"away","clusters":{"few":"ready","enough":"ready","clear":"away","close":"degraded","unsaid":"degraded","half":"degraded","less":"away","off":"ready"}}
--- error_log
18 of 20 requests of cluster "clear" have finished, and 95.00 % of the other frontends'
cluster "close" is degraded: 18 of 20 requests have finished; this frontend stays: the others are not clearly better
cluster "unsaid" is degraded: 0 of 10 requests have finished; this frontend stays: it knows of no other to compare with
cluster "half" is degraded: 0 of 10 requests have finished; this frontend stays: half of all are out already



=== TEST 3: alone it stays, and says so until it is better
--- readiness
requests=10 window=2s
--- http_config
pd_zone pd:1m;
log_format degraded '$status degraded=$pd_degraded';
access_log {{root}}/logs/error.log degraded;
pd_cluster chat {
    worker {{m0}};
    ejection faults=1000;
    readiness requests=10 window=2s;
}
--- worker
m0 refuse=INTERNAL:20
--- steps
nginx ask 10 500
nginx expect cluster "chat" is degraded: 0 of 10 requests have finished; this frontend stays: it knows of no other to compare with
client_ready request
client_ready expect {"status":"ready","clusters":{"chat":"degraded"}}
client_ready status 200
client request
client finish
nginx expect 200 degraded=1
client_metrics request
client_metrics expect pd_degraded{cluster="chat"} 1
nginx expect cluster "chat" is degraded no more
client2 request
client2 finish
nginx expect 200 degraded=0



=== TEST 4: a canary that fails: it stays out for longer
--- worker
m0 refuse=INTERNAL:21 others=100:99|100:99
--- readiness
requests=10 out=500ms
--- steps
nginx ask 10 500
nginx expect takes itself out
nginx expect /this frontend stays out of cluster "chat" for (7[5-9]\d|[89]\d\d|1[012]\d\d) ms more: 1 of its canaries failed/
nginx expect this frontend is back in cluster "chat": 20 of 20 canaries sang



=== TEST 5: nobody else is in any more: it is better than nobody
--- worker
m0 refuse=INTERNAL:20 others=100:99|100:99/100:99:away|100:99:away
--- readiness
requests=10 out=1h
--- steps
nginx ask 10 500
nginx expect takes itself out
worker m0 release
nginx expect this frontend is back in cluster "chat": no other one is in
client_ready request
client_ready expect "chat":"



=== TEST 6: a reload while it is out: a process that stays sends the canaries
--- workers: 1
--- worker eval
'm0 refuse=INTERNAL:20 others=100:99|100:99 delay=30 text=' . CORE::join '|', ('a' .. 'j') x 100
--- readiness
requests=10 out=1s
--- request_client_held
POST /v1/completions
{"model":"m","prompt":"hello","stream":true,"max_tokens":1000}
--- steps
nginx ask 10 500
nginx expect takes itself out
client_held request
client_held expect "a"
nginx reload
worker m0 expect generation=2
client_ready request
client_ready expect "chat":"away"
nginx expect this frontend is back in cluster "chat": 20 of 20 canaries sang
worker m0 lacks detach
client_held close
worker m0 expect detach



=== TEST 7: what has ended, and that it is out, outlive a restart in the state file
--- workers: 1
--- zone: pd:1m state={{root}}/pd.state
--- worker
m0 refuse=INTERNAL:20 others=100:99|100:99
--- readiness
requests=10 out=1h
--- steps
nginx ask 1 500
nginx ask 9 500
nginx expect takes itself out
nginx restart
worker m0 expect detach
worker m0 expect told 0/10 away
client_ready request
client_ready expect "chat":"away"



=== TEST 8: a process that is killed takes nothing with it
--- workers: 1
--- worker
m0 refuse=INTERNAL:6
--- steps
nginx ask 3 500
nginx kill_child
worker m0 expect detach
worker m0 expect told 0/3
--- ignore_log
exited on signal 9



=== TEST 9: what does not count
--- config
location /v1/ { pd_pass chat; }
location /limited/ { pd_pass chat; pd_limit requests=1; }
location /hurried/ { pd_pass chat; }
--- cluster: worker {{m0}} max_streams=2; queue 10 timeout=100ms;
--- worker
m0 gate=token
--- request_client_bad
POST /v1/completions
{"model":"m","prompt":7}
--- request_client_lost
POST /v1/completions
{"model":"nobody","prompt":"hello"}
--- request_client_left
POST /v1/completions
{"model":"m","prompt":"hello","stream":true}
--- request_client_limited
POST /limited/completions
{"model":"m","prompt":"hello","max_tokens":1}
--- request_client_limited2
POST /limited/completions
{"model":"m","prompt":"hello","max_tokens":1}
--- more_headers_client_hurried
x-request-timeout-ms: 100
--- request_client_left2
POST /v1/completions
{"model":"m","prompt":"hello","stream":true}
--- steps
worker m0 expect heartbeat
client_bad request
client_bad finish
client_bad status 400
client_lost request
client_lost finish
client_lost status 404
client_limited request
client_limited finish
client_limited status 200
client_limited2 request
client_limited2 finish
client_limited2 status 429
client_hurried request
client_hurried finish
client_hurried status 504
client_left request
client_left expect t0
client_left2 request
client_left2 expect t0
client_busy request
client_busy finish
client_busy status 503
client_left close
client_left2 close
worker m0 expect CLIENT_GONE
worker m0 expect told 1/1
sleep 1.1
--- no_worker_log
told \d/[2-9]



=== TEST 10: requests for which nobody is there have failed
--- cluster: worker {{m0}}; queue 10 timeout=300ms;
--- worker
m0
--- steps
nginx expect cluster "chat" has a usable pair for each model
nginx ask 1 200
worker m0 kill
nginx expect lost worker
nginx expect this frontend is not ready: cluster "chat" has no usable pair
client_ready request
client_ready expect {"status":"waiting","clusters":{"chat":"waiting"}}
client_ready status 503
nginx ask 1 503
worker m0 start
worker m0 expect told 1/2
nginx expect cluster "chat" has a usable pair for each model



=== TEST 11: each model has to have a pair
--- cluster: worker {{p0}}; worker {{d0}}; worker {{n0}};
--- worker
p0 role=prefill
d0 role=decode
n0 model=n
--- steps
nginx expect attached
nginx expect attached
nginx expect attached
client_ready request
client_ready expect "chat":"ready"
worker d0 kill
nginx expect lost worker
client_ready2 request
client_ready2 expect "chat":"waiting"
nginx ask 1 200
--- request
POST /v1/completions
{"model":"n","prompt":"hello","max_tokens":3}



=== TEST 12: a worker that leaves in order takes its model along
--- cluster: worker {{m0}}; worker {{n0}};
--- worker
m0
n0 model=n
--- steps
nginx expect attached
nginx expect attached
worker n0 drain
nginx expect drains
client_ready request
client_ready expect "chat":"ready"
worker m0 drain
nginx expect drains
client_ready2 request
client_ready2 expect "chat":"waiting"



=== TEST 13: parameters that cannot be
--- readiness: canaries=19
--- worker
m0
--- must_die
--- error_log
invalid parameter "canaries=19" in "readiness"



=== TEST 14: one given twice
--- readiness: ratio=95% ratio=90%
--- worker
m0
--- must_die
--- error_log
invalid parameter "ratio=90%" in "readiness"
