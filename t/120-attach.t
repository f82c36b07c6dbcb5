# The Attach stream: hello, what is logged, coming back, going.

use Test::Nginx::Socket 'no_plan';

add_block_preprocessor(sub {
    my ($block) = @_;

    defined $block->config
        or $block->set_value(config => 'location /v1/ { pd_pass chat; }
            location = /ready { pd_health ready; }');
    defined $block->request
        or $block->set_value(request => <<'END');
POST /v1/completions
{"model":"m","prompt":"hello","stream":true}
END
});

run_tests();

__DATA__

=== TEST 1: each process attaches to each worker, and says who it is
--- workers: 2
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{p0}}; worker {{d0}}; }
--- worker
p0 role=prefill
d0 role=decode
--- steps
worker p0 expect /attach frontend=[0-9a-f]{32} slot=[01] generation=1/
worker p0 expect /attach frontend=[0-9a-f]{32} slot=[01] generation=1/
worker d0 expect /attach frontend=[0-9a-f]{32} slot=[01] generation=1/
worker d0 expect /attach frontend=[0-9a-f]{32} slot=[01] generation=1/
nginx expect attached to worker
--- error_log eval
[qr/pd: attached to worker "127.0.0.1:\d+": prefill of model "m", 1000 blocks of 16 tokens/,
 qr/pd: attached to worker "127.0.0.1:\d+": decode of model "m"/]



=== TEST 2: heartbeats are messages
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{m0}}; }
--- worker
m0
--- steps
worker m0 expect heartbeat



=== TEST 3: a worker that is not there yet is found when it comes
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{m0}}; }
--- worker
m0
--- steps
nginx expect attached
worker m0 kill
nginx expect lost worker
client request
sleep 0.3
worker m0 start
client expect t2
--- error_log
lost worker
--- no_worker_log
protocol error



=== TEST 4: nobody is there: one loud line, then quiet ones
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{nobody}}; }
--- steps
nginx expect /\[error\].*cannot attach to worker "127.0.0.1:\d+": /
nginx expect /\[info\].*cannot attach to worker/



=== TEST 5: a worker of another role than the file says is not used
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{p0}} role=decode; worker {{m0}}; }
--- worker
p0 role=prefill
m0
--- steps
nginx expect is not used: the configuration calls it decode and it runs with --role prefill
client request
client expect t2
worker m0 expect submit
--- no_worker_log
p0 submit



=== TEST 6: workers that differ are never paired, and named
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{p0}}; worker {{d0}}; queue 1 timeout=300ms; }
--- worker
p0 role=prefill fingerprint=a
d0 role=decode fingerprint=b
--- steps
nginx expect with different weights, and are never paired
client request
--- error_code: 503
--- no_worker_log
submit



=== TEST 7: another protocol
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{m0}}; }
--- worker
m0 protocol=7
--- steps
nginx expect it speaks another version of the protocol



=== TEST 8: a hello that does not come
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{m0}}; queue 1 timeout=100ms; }
--- worker
m0 gate=hello
--- steps
worker m0 expect attach
client request
client finish
--- error_code: 503



=== TEST 9: readiness follows the streams
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{p0}}; worker {{d0}}; }
--- worker
p0 role=prefill
d0 role=decode
--- request_client2
GET /ready
--- request_client3
GET /ready
--- steps
nginx expect attached to worker
nginx expect attached to worker
client2 request
client2 expect {"status":"ready","clusters":{"chat":"ready"}}
worker d0 kill
nginx expect lost worker
client3 request
client3 expect {"status":"waiting","clusters":{"chat":"waiting"}}
--- error_log
lost worker



=== TEST 10: a worker that stands still is given up, and its request tried elsewhere
--- timeout: 15
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{m0}}; worker {{m1}} backup; }
--- worker
m0 gate=placed
m1
--- steps
nginx expect attached
nginx expect attached
client request
worker m0 expect submit
worker m0 stop
client expect t2
worker m0 kill
--- error_log
nothing was heard from it for 5 s
--- worker_log
m1 submit request=1 attempt=2



=== TEST 11: the processes that nginx has for its caches do not attach
--- workers: 1
--- http_config
proxy_cache_path {{root}}/cache keys_zone=cache:1m;
pd_zone pd:1m;
pd_cluster chat { worker {{m0}}; }
--- worker
m0
--- steps
nginx expect start cache manager process
worker m0 expect heartbeat
worker m0 lacks /attach frontend.*attach frontend/
--- no_error_log
cannot attach



=== TEST 12: a test of the configuration opens no stream and writes no file
--- workers: 1
--- http_config
pd_zone pd:1m state={{root}}/state;
pd_cluster chat { worker {{m0}}; }
--- reload_http_config
pd_zone pd:1m state={{root}}/other;
pd_cluster chat { worker {{m0}}; }
--- worker
m0
--- steps
worker m0 expect heartbeat
nginx test
worker m0 lacks /attach frontend.*attach frontend/
client request
client expect t2
