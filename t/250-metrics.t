# What is counted, and that it adds up.

use Test::Nginx::Socket 'no_plan';

add_block_preprocessor(sub {
    my ($block) = @_;

    defined $block->config
        or $block->set_value(config => <<'END');
location /v1/ { pd_pass chat; }
location = /metrics { pd_metrics; }
END
    defined $block->request
        or $block->set_value(request => <<'END');
POST /v1/completions
{"model":"m","prompt":"hello","stream":true}
END
    defined $block->http_config
        or $block->set_value(http_config => <<'END');
pd_zone pd:1m;
pd_cluster chat { worker {{m0}}; worker {{m1}} backup; }
END
    $block->set_value(request_client9 => "GET /metrics\n");
});

run_tests();

__DATA__

=== TEST 1: the format: each family explained once, and nothing but samples
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{nobody}} role=decode; }
pd_cluster "co\"\\de" { register on; }
--- request
GET /metrics
--- response_headers
Content-Type: text/plain; version=0.0.4; charset=utf-8
--- response_body_like eval
qr{\A(?>\#[ ]HELP[ ](pd_\w+)[ ][^\n]+\n
       \#[ ]TYPE[ ]\g1[ ](?:counter|gauge)\n
       (?:\g1(?:\{(?:\w+="(?:[^"\\]|\\["\\])*",?)+\})?[ ]\d+\n)+)+\z}x



=== TEST 2: a configured worker that nobody has reached, names that need escapes
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker unix:/no/such"worker role=decode; }
pd_cluster "co\"\\de" { register on; }
--- request
GET /metrics
--- response_body_like
pd_requests_total\{cluster="chat"\} 0\npd_requests_total\{cluster="co\\"\\\\de"\} 0\n.*pd_requests_ended_total\{cluster="chat",outcome="lost"\} 0\n.*pd_cluster_worker_state\{cluster="chat",worker="unix:/no/such\\"worker",role="unknown",state="unknown"\} 1\n.*pd_zone_records_used 0\n.*pd_zone_processes 1\n\z
--- ignore_log
connect() to unix



=== TEST 3: a request that runs, and then has ended
--- worker
m0 gate=token
m1
--- steps
nginx expect attached
nginx expect attached
client request
client expect t0
client8 request
client8 expect /_requests_total\{cluster="chat"\} 1\n.*_running\{cluster="chat"\} 1\n/
client8 expect /_worker_jobs\{cluster="chat",worker="[^"]+",role="mixed"\} 1\n.*_records_used 1\n/
worker m0 release
client expect t1
worker m0 release
client finish
client9 request
client9 expect /ended_total\{cluster="chat",outcome="answered"\} 1\n.*_running\{cluster="chat"\} 0\n/
client9 expect /state="well"\} 1\n.*_worker_jobs\{cluster="chat",worker="[^"]+",role="mixed"\} 0\n.*_records_used 0\n/
--- request_client8
GET /metrics
--- response_body_like
DONE



=== TEST 4: requests in the queue, clients that leave
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{m0}} max_streams=1; }
--- worker
m0 gate=token
--- steps
nginx expect attached
client request
client expect t0
client2 request
sleep 0.1
client8 request
client8 expect /_total\{cluster="chat"\} 2\n.*_running\{cluster="chat"\} 1\n.*class="standard"\} 1\n/
client2 close
client close
worker m0 expect cancel
sleep 0.1
client9 request
client9 expect /outcome="left"\} 2\n.*_running\{cluster="chat"\} 0\n.*class="standard"\} 0\n.*used 0\n/
--- request_client8
GET /metrics



=== TEST 5: refused: no such model, a full queue
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{m0}} max_streams=1; queue 1; }
--- worker
m0 gate=token
--- steps
nginx expect attached
client request
client expect t0
client2 request
client2 finish
client3 request
sleep 0.1
client4 request
client4 finish
client9 request
client9 expect /_requests_total\{cluster="chat"\} 2\n.*reason="model"\} 1\n.*reason="queue"\} 1\n/
client9 expect /outcome="answered"\} 0\n/
client close
--- request_client2
POST /v1/completions
{"model":"other","prompt":"hello"}
--- request_client3
POST /v1/completions
{"model":"m","prompt":"hello"}
--- request_client4
POST /v1/completions
{"model":"m","prompt":"hello"}



=== TEST 6: gave up: it was there when two workers died
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{m0}}; worker {{m1}} backup; worker {{m2}} backup; }
--- worker
m0 gate=token numerics=x
m1 gate=first numerics=x
m2 gate=token numerics=y
--- steps
nginx expect attached
nginx expect attached
nginx expect attached
client request
client expect t0
worker m0 kill
worker m1 expect submit
worker m1 kill
client finish
client9 request
client9 expect /outcome="failed"\} 1\n/
client9 expect /kind="exact"\} 0\n.*kind="approximate"\} 0\n.*kind="restarted"\} 0\n.*gave_up_total\{cluster="chat"\} 1\n/
--- response_body_like
error



=== TEST 7: moved exactly
--- worker
m0 gate=token
m1
--- steps
nginx expect attached
nginx expect attached
client request
client expect t0
worker m0 kill
client finish
client9 request
client9 expect /outcome="answered"\} 1\n.*kind="exact"\} 1\n.*kind="approximate"\} 0\n.*kind="restarted"\} 0\n.*gave_up_total\{cluster="chat"\} 0\n/
--- response_body_like
DONE



=== TEST 8: moved to a worker that computes otherwise
--- worker
m0 gate=token numerics=x
m1 numerics=y
--- steps
nginx expect attached
nginx expect attached
client request
client expect t0
worker m0 kill
client finish
client9 request
client9 expect /kind="exact"\} 0\n.*kind="approximate"\} 1\n.*kind="restarted"\} 0\n/
--- response_body_like
DONE



=== TEST 9: begun anew, since nothing had come of it
--- worker
m0 gate=first
m1
--- steps
nginx expect attached
nginx expect attached
client request
worker m0 expect submit
worker m0 kill
client finish
client9 request
client9 expect /kind="exact"\} 0\n.*kind="approximate"\} 0\n.*kind="restarted"\} 1\n/
--- response_body_like
DONE



=== TEST 10: moves that wait for their turn
--- http_config
pd_zone pd:1m;
pd_cluster chat {
    worker {{m0}};
    worker {{m1}} backup;
    failover_rate 1 burst=1;
}
--- worker
m0 gate=token
m1
--- steps
nginx expect attached
nginx expect attached
client request
client expect t0
client2 request
client2 expect t0
worker m0 kill
client expect t2
client2 expect t2
client9 request
client9 expect /kind="exact"\} 2\n.*paced_total\{cluster="chat"\} 1\n.*unpromised_total\{cluster="chat"\} 0\n/



=== TEST 11: a request over pd_failover_buffer
--- config
location /v1/ { pd_pass chat; pd_failover_buffer 1; }
location = /metrics { pd_metrics; }
--- worker
m0
m1
--- steps
nginx expect attached
nginx expect attached
client request
client expect [DONE]
client9 request
client9 expect /outcome="answered"\} 1\n.*unpromised_total\{cluster="chat"\} 1\n/



=== TEST 12: a process that dies takes its requests along, within a second
--- workers: 2
--- worker
m0 gate=token
m1
--- steps
nginx expect attached
nginx expect attached
nginx expect attached
nginx expect attached
client2 request
client2 expect t0
nginx kill_busy_child
worker m0 expect detach
nginx expect forgot the requests of process
client9 request
client9 expect /_requests_total\{cluster="chat"\} 1\n.*outcome="lost"\} 1\n.*_running\{cluster="chat"\} 0\n.*_jobs\{[^\n]*\} 0\n.*used 0\n/
nginx healed_within 1
--- ignore_log
exited on signal 9



=== TEST 13: it outlives a reload
--- workers: 1
--- worker
m0
m1
--- steps
nginx expect attached
nginx expect attached
client request
client expect [DONE]
nginx reload
client9 request
client9 expect /_requests_total\{cluster="chat"\} 1\n.*outcome="answered"\} 1\n/



=== TEST 14: hand-offs, and how long they took; an answer of one worker has none
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{p}} role=prefill; worker {{d}} role=decode; }
pd_cluster alone { worker {{m}}; }
--- config
location /v1/ { pd_pass chat; }
location /alone/ { pd_pass alone; }
location = /metrics { pd_metrics; }
--- worker
p role=PREFILL
d role=DECODE
m
--- steps
nginx expect attached
nginx expect attached
nginx expect attached
client request
client finish
client2 request
client2 finish
client3 request
client3 finish
client9 request
client9 expect /_transfers_total\{cluster="chat"\} 2\n.*_transfers_total\{cluster="alone"\} 0\n/
client9 expect /_kv_bytes_total\{cluster="chat"\} 8192\n/
client9 expect /"chat",part="wait"\} 8000\n.*"chat",part="wire"\} 10000\n.*"chat",part="exposed"\} 12000\n/
--- request_client2
POST /v1/completions
{"model":"m","prompt":"hello","stream":true}
--- request_client3
POST /alone/completions
{"model":"m","prompt":"hello","stream":true}



=== TEST 15: other methods are refused
--- request
POST /metrics
x=1
--- error_code: 405



=== TEST 16: a worker's KV pool, as its last report says
--- worker
m0 blocks=100 reserved=5 growth=7 gate=token
m1
--- steps
nginx expect attached
nginx expect attached
client request
client expect t0
client8 request
client8 expect /_kv_blocks\{[^}]+\} 100\n.*_free_blocks\{[^}]+\} 9\d\n.*_reserved_blocks\{[^}]+\} 5\n.*_growth_blocks\{[^}]+\} 7\n/
worker m0 release
worker m0 release
client finish
--- request_client8
GET /metrics
--- response_body_like
DONE
