# nginx is told to reload, or to leave, while requests run.

use Test::Nginx::Socket 'no_plan';

add_block_preprocessor(sub {
    my ($block) = @_;

    defined $block->config
        or $block->set_value(config => 'location /v1/ { pd_pass chat; }');
    defined $block->request
        or $block->set_value(request => <<'END');
POST /v1/completions
{"model":"m","prompt":"hello","stream":true}
END
    defined $block->http_config
        or $block->set_value(http_config => <<'END');
pd_zone pd:1m;
pd_cluster chat { worker {{p0}}; worker {{d0}}; }
END
});

run_tests();

__DATA__

=== TEST 1: a stream outlives the configuration that began it
--- workers: 1
--- worker
p0 role=prefill
d0 role=decode gate=token
--- steps
client request
client expect t0
nginx reload
worker d0 expect /attach [^\n]*generation=2/
client2 request
client2 expect t0
worker d0 release
worker d0 release
worker d0 release
worker d0 release
client expect t2
client2 expect t2
nginx expect /exited with code 0/
--- no_worker_log
cancel



=== TEST 2: the process that leaves says that it submits no more
--- workers: 1
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{m0}}; }
--- worker
m0 gate=token
--- steps
client request
client expect t0
nginx reload
worker m0 lacks drain
worker m0 release
worker m0 release
client expect t2
worker m0 expect drain
worker m0 expect detach



=== TEST 3: a request that waits in the old process is served by it
--- workers: 1
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{m0}} max_streams=1; }
--- worker
m0 gate=finish
--- steps
client request
client expect t1
client2 request
sleep 0.1
nginx reload
worker m0 expect generation=2
worker m0 lacks drain
worker m0 release
client expect t2
worker m0 release
client2 expect t2
worker m0 expect drain



=== TEST 4: a worker that is configured no more ends what it has
--- workers: 1
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{m0}}; worker {{m1}} backup; }
--- reload_http_config
pd_zone pd:1m;
pd_cluster chat { worker {{m1}}; }
--- worker
m0 gate=token
m1
--- steps
nginx expect attached
nginx expect attached
client request
client expect t0
nginx reload
worker m1 expect generation=2
client2 request
client2 expect t2
worker m0 release
worker m0 release
client expect t2
worker m0 expect detach
--- worker_log
m0 submit request=1
m1 submit
--- no_worker_log
m0 attach [^\n]*generation=2



=== TEST 5: a new process waits for its streams, and answers no 503
--- workers: 1
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{m0}}; }
--- worker
m0
--- steps
worker m0 expect generation=1
nginx reload
nginx expect gracefully shutting down
client request
client expect t2



=== TEST 6: time is up: an error event, and the workers are told
--- workers: 1
--- main_config
worker_shutdown_timeout 500ms;
--- worker
p0 role=prefill
d0 role=decode gate=token
--- steps
client request
client expect t0
nginx reload
client expect The server is shutting down
worker d0 expect /cancel request=1 attempt=1 reason=SHUTDOWN|detach/
worker p0 expect /cancel request=1 attempt=1 reason=SHUTDOWN|detach/
nginx expect exited with code 0



=== TEST 7: a configuration with a fault changes nothing
--- workers: 1
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{m0}}; }
--- reload_http_config
pd_zone pd:1m;
pd_cluster chat { worker {{m0}}; queue 0; }
--- worker
m0
--- steps
worker m0 expect generation=1
nginx reload
nginx expect invalid length "0" in "queue"
client request
client expect t2
worker m0 lacks generation=2
--- ignore_log
invalid length



=== TEST 8: another size of the zone is another zone
--- workers: 1
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{m0}}; }
--- reload_http_config
pd_zone pd:2m;
pd_cluster chat { worker {{m0}}; }
--- worker
m0 gate=token
--- steps
client request
client expect t0
nginx reload
worker m0 expect /attach .* slot=\d+ generation=1\n/
client2 request
client2 expect t0
worker m0 release
worker m0 release
worker m0 release
worker m0 release
client expect t2
client2 expect t2



=== TEST 9: asked to leave, nginx ends its streams first
--- workers: 1
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{m0}}; }
--- worker
m0 gate=token
--- steps
client request
client expect t0
nginx signal QUIT
worker m0 release
worker m0 release
client expect t2
client finish
worker m0 expect drain
nginx exits



=== TEST 10: many reloads leave nothing behind
--- workers: 1
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{m0}}; }
--- worker
m0
--- steps
worker m0 expect generation=1
nginx reload
worker m0 expect detach
nginx reload
worker m0 expect detach
nginx reload
worker m0 expect detach
client request
client expect t2
