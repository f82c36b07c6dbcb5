# Workers' names, resolved again when their time has come.

use Test::Nginx::Socket 'no_plan';

add_block_preprocessor(sub {
    my ($block) = @_;

    $block->set_value(config => 'location /v1/ { pd_pass chat; }');
    $block->set_value(request => <<'END');
POST /v1/completions
{"model":"m","prompt":"hello","stream":true}
END
    defined $block->http_config
        or $block->set_value(http_config => <<'END');
resolver {{ns}} ipv6=off;
pd_zone pd:1m;
pd_cluster chat { worker chat.test:{{spot:port}}; }
END
});

run_tests();

__DATA__

=== TEST 1: a name that moves takes new requests along; old ones end where they are
--- worker
ns dns=127.0.0.2|127.0.0.3
m0 host=127.0.0.2 port={{spot:port}} gate=finish
m1 host=127.0.0.3 port={{spot:port}}
--- steps
worker m0 expect attach
client1 request
client1 expect t1
worker ns release
nginx expect /worker "chat.test:\d+" has moved: its name has another address/
client2 request
sleep 0.3
worker m0 lacks submit request=2
worker m1 lacks attach
worker m0 release
client1 expect t2
client2 expect t2
worker m1 expect attach
worker m1 expect submit request=2
--- no_worker_log
cancel



=== TEST 2: a name that nobody knows yet
--- worker
ns dns=|127.0.0.2
m0 host=127.0.0.2 port={{spot:port}}
--- steps
nginx expect /\[error\].*cannot attach to worker "chat.test:\d+": Host not found/
client request
worker ns release
client expect t2
worker m0 expect submit



=== TEST 3: a name server that fails takes nobody along
--- worker
ns dns=127.0.0.2|
m0 host=127.0.0.2 port={{spot:port}} gate=token
--- steps
worker m0 expect attach
worker ns release
sleep 2.5
client1 request
client1 expect t0
worker m0 release
worker m0 release
client1 expect t2
--- no_error_log
has moved
lost worker



=== TEST 4: without a resolver, a name is resolved at start or not at all
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker no-such-host.invalid:9000; }
--- must_die
--- error_log
host not found in "worker no-such-host.invalid:9000" of "pd_cluster chat"
