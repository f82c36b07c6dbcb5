# Requests that wait for room.

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

=== TEST 1: a worker with its hands full makes the next one wait
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{m0}} max_streams=1; }
--- worker
m0 gate=finish
--- steps
client request
client expect t1
client2 request
sleep 0.2
worker m0 lacks submit request=2
worker m0 release
client expect t2
worker m0 expect submit request=2
worker m0 release
client2 expect t2



=== TEST 2: the worker's own limit counts as well
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{p0}}; worker {{d0}}; }
--- worker
p0 role=prefill
d0 role=decode max_seqs=1 gate=finish
--- steps
client request
client expect t1
client2 request
sleep 0.2
worker p0 lacks submit request=2
worker d0 release
worker d0 expect submit request=2
worker d0 release
client2 expect t2



=== TEST 3: and so do the blocks of its pool
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{m0}}; }
--- request
POST /v1/completions
{"model":"m","prompt":"hello","stream":true,"max_tokens":100}
--- worker
m0 gate=finish blocks=10 prompt=20
--- steps
client request
client expect t1
client2 request
sleep 0.2
worker m0 lacks submit request=2
worker m0 release
worker m0 expect submit request=2
worker m0 release
client2 expect t2



=== TEST 4: the queue has a limit
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{m0}} max_streams=1; queue 1; }
--- worker
m0 gate=finish
--- steps
client3 request
client3 expect t1
client2 request
sleep 0.1
client request
client finish
client status 503
worker m0 release
client3 expect t2
worker m0 release
client2 expect t2
--- error_code: 503
--- error_log
the queue of cluster "chat" is full



=== TEST 5: waiting has an end
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{m0}} max_streams=1; queue 10 timeout=300ms; }
--- worker
m0 gate=finish
--- steps
client2 request
client2 expect t1
client request
client finish
worker m0 release
client2 expect t2
--- error_code: 503
--- response_body_like
No worker had room in time
--- no_worker_log
submit request=2



=== TEST 6: who leaves the queue makes room for the next
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
client3 request
sleep 0.1
client2 close
sleep 0.1
worker m0 release
worker m0 expect submit request=3
worker m0 release
client3 expect t2
--- no_worker_log
submit request=2



=== TEST 7: who waits for one model does not hold up another
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{m0}} max_streams=1; worker {{m1}}; }
--- worker
m0 gate=finish
m1 model=other
--- request_client3
POST /v1/completions
{"model":"other","prompt":"hello","stream":true}
--- steps
nginx expect attached
nginx expect attached
client request
client expect t1
client2 request
sleep 0.1
client3 request
client3 expect t2
worker m0 release
worker m0 release
client2 expect t2



=== TEST 8: one queue for all processes, in order
--- workers: 2
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{m0}} max_streams=1; }
--- worker
m0 gate=finish
--- steps
worker m0 expect attach
worker m0 expect attach
client request
client expect t1
client2 request
sleep 0.1
client3 request
sleep 0.1
client4 request
sleep 0.1
worker m0 release
client2 expect t1
client3 lacks t0
worker m0 release
client3 expect t1
client4 lacks t0
worker m0 release
client4 expect t1
worker m0 release
client4 expect t2



=== TEST 9: a process that dies holds no room
--- workers: 1
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{m0}} max_streams=1; }
--- worker
m0 gate=finish
--- steps
client2 request
client2 expect t1
nginx kill_child
worker m0 expect detach
client request
worker m0 expect submit request=1
worker m0 release
client expect t2
--- ignore_log
exited on signal 9



=== TEST 10: of two processes, the other notices
--- workers: 2
--- timeout: 10
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{m0}} max_streams=1; queue 10 timeout=8s; }
--- worker
m0 gate=finish
--- steps
worker m0 expect attach
worker m0 expect attach
client2 request
client2 expect t1
nginx kill_busy_child
worker m0 expect detach
client request
worker m0 release
client expect t2
--- ignore_log
exited on signal 9



=== TEST 11: nobody is there: everybody waits for a worker to come
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{m0}}; queue 10 timeout=10s; }
--- worker
m0
--- steps
worker m0 kill
nginx expect /(lost|cannot attach to) worker/
client request
client2 request
sleep 0.1
worker m0 start
client expect t2
client2 expect t2



=== TEST 12: a process that stands still does not take a grant, and it moves on
--- workers: 2
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{m0}} max_streams=1; }
--- worker
m0 gate=finish
--- steps
worker m0 expect attach
worker m0 expect attach
client connect 0
client2 connect 1
client3 connect 0
client request
client expect t1
client2 request
sleep 0.2
client3 request
sleep 0.2
nginx child STOP 1
worker m0 release
client expect t2
client3 expect t1
nginx child CONT 1
worker m0 release
client3 expect t2
client2 expect t1
worker m0 release
client2 expect t2
