# Answers go on elsewhere, where their workers are lost in the middle of them.

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
pd_cluster chat { worker {{m0}}; worker {{m1}} backup; }
END
});

run_tests();

__DATA__

=== TEST 1: D dies: another pair goes on behind the tokens that were sent
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{p0}}; worker {{d0}}; worker {{d1}} backup; }
log_format story '$pd_request_id failovers=$pd_failovers $status';
access_log {{root}}/logs/error.log story;
--- worker
p0 role=prefill prompt=7 text=t0_|t1_|t2_|t3_
d0 role=decode gate=token text=t0_|t1_|t2_|t3_
d1 role=decode prompt=9 text=t0_|t1_|t2_|t3_
--- steps
nginx expect attached
nginx expect attached
nginx expect attached
client request
client expect t0
worker d0 release
client expect t1
worker d0 kill
client expect t3
client expect [DONE]
nginx expect failovers=1 200
--- response_body_like
^(?!.*t0 .*t0 )(?!.*t1 .*t1 )(?!.*error)
--- worker_log
d0 submit request=1 attempt=1 route=DECODE
d1 submit request=1 attempt=2 route=DECODE
d1 message [^\n]*generated \{ ids: 100 ids: 101 \} ticket
p0 submit request=1 attempt=2 route=PREFILL
p0 message [^\n]*"hello" generated \{ ids: 100 ids: 101 \} sampling
--- error_log
has gone on from token 2, exact



=== TEST 2: and the tokens of the second try are kept for a third
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{m0}}; worker {{m1}} backup; worker {{m2}} backup; }
--- worker
m0 text=a|b|c|d fail=CANCELLED
m1 text=a|b|c|d fail=CANCELLED
m2 text=a|b|c|d
--- steps
nginx expect attached
nginx expect attached
nginx expect attached
client request
client expect [DONE]
--- response_body_like
"text":"a".*"text":"b".*"text":"c".*"text":"d"
--- worker_log
m0 submit request=1 attempt=1
--- error_log
has gone on from token 1, exact
has gone on from token 2, exact



=== TEST 3: an answer that is not streamed
--- request
POST /v1/completions
{"model":"m","prompt":"hello"}
--- worker
m0 gate=finish
m1 prompt=20
--- steps
nginx expect attached
nginx expect attached
client request
worker m0 expect submit
sleep 0.1
worker m0 kill
client finish
--- response_body_like
"text":"t0 t1 t2 ".*"completion_tokens":3
--- worker_log
m1 message [^\n]*generated \{ ids: 100 ids: 101 \}



=== TEST 4: P dies when its token is out and the hand-off is not complete
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{p0}}; worker {{d0}}; worker {{d1}} backup; }
--- worker
p0 role=prefill
d0 role=decode fail=TICKET
d1 role=decode
--- steps
nginx expect attached
nginx expect attached
nginx expect attached
client request
client expect t2
client expect [DONE]
--- response_body_like
^(?!.*t0 .*t0 )
--- worker_log
d1 submit request=1 attempt=2 [^\n]*ticket=p0/2
d1 message [^\n]*generated \{ ids: 100 \}



=== TEST 5: a request that was there when two workers died goes no further
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{m0}}; worker {{m1}} backup; worker {{m2}} backup; }
--- worker
m0 gate=token
m1 gate=token
m2 gate=token
--- steps
nginx expect attached
nginx expect attached
nginx expect attached
client request
client expect t0
worker m0 kill
client expect t1
worker m1 kill
client expect The worker was lost in the middle of the answer
client finish
--- response_body_like
^(?!.*DONE)
--- no_worker_log
attempt=3



=== TEST 6: an answer over pd_failover_buffer runs without the promise
--- config
location /v1/ { pd_pass chat; pd_failover_buffer 100; }
--- request
POST /v1/completions
{"model":"m","prompt":"hello hello hello hello","stream":true,"ignore_eos":true}
--- worker
m0 text=a|b|c|d|e|f|g|h|i gate=finish
m1
--- steps
nginx expect attached
nginx expect attached
client request
client expect "h"
nginx expect pd_failover_buffer is smaller than it
worker m0 kill
client expect The worker was lost in the middle of the answer
client finish
--- response_body_like
^(?!.*DONE)
--- no_worker_log
m1 submit



=== TEST 7: so does one whose prompt alone is over it
--- config
location /v1/ { pd_pass chat; pd_failover_buffer 4k; }
--- request eval
"POST /v1/completions\n" . '{"model":"m","stream":true,"prompt":"'
. ("many words " x 20000) . '"}'
--- worker
m0 gate=token
m1
--- steps
nginx expect attached
nginx expect attached
client request
client expect t0
nginx expect pd_failover_buffer is smaller than it
worker m0 kill
client expect The worker was lost in the middle of the answer
client finish
--- response_body_like
^(?!.*DONE)



=== TEST 8: comments tell the client that its answer goes on
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{m0}}; }
--- worker
m0 gate=token
--- steps
client request
client expect t0
worker m0 kill
client expect : goes on
worker m0 start
worker m0 expect attempt=2
worker m0 release
client expect t2
client expect [DONE]



=== TEST 9: workers that compute otherwise
--- worker
m0 gate=token numerics=x
m1 numerics=y
--- steps
nginx expect attached
nginx expect attached
client request
client expect t0
worker m0 kill
client expect t2
--- error_log
has gone on from token 1, approximate



=== TEST 10: workers of a pair that compute otherwise from the start
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{p0}}; worker {{d0}}; worker {{d1}} backup; }
--- worker
p0 role=prefill numerics=x
d0 role=decode numerics=y gate=token
d1 role=decode numerics=y
--- steps
nginx expect attached
nginx expect attached
nginx expect attached
client request
client expect t0
worker d0 kill
client expect t2
--- error_log
has gone on from token 1, approximate



=== TEST 11: answers that move are paced
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
worker m1 expect attempt=2
sleep 0.2
worker m1 lacks /submit [^\n]*attempt=2.*submit [^\n]*attempt=2/
client expect t2
client2 expect t2
worker m1 expect attempt=2



=== TEST 12: a process that leaves moves its answers as well
--- workers: 1
--- worker
m0 gate=token
m1
--- steps
nginx expect attached
nginx expect attached
client request
client expect t0
nginx reload
worker m0 expect generation=2
worker m0 kill
client expect t2
client expect [DONE]
nginx expect /exited with code 0/



=== TEST 13: a worker's own failure is tried elsewhere once
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{m0}}; worker {{m1}} backup; worker {{m2}} backup; }
--- worker
m0 fail=INTERNAL
m1 fail=INTERNAL
m2 fail=INTERNAL
--- steps
nginx expect attached
nginx expect attached
nginx expect attached
client request
client expect the fake says no
client finish
--- response_body_like
"t0 ".*"t1 ".*"error".*(?!.*DONE)
--- no_worker_log
attempt=3



=== TEST 14: a client that leaves in the pause
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{m0}}; }
--- worker
m0 gate=token
--- steps
client request
client expect t0
worker m0 kill
nginx expect lost worker
client close
worker m0 start
nginx expect attached
client2 request
worker m0 expect submit request=2
worker m0 lacks request=1 attempt=2



=== TEST 15: many tokens in a step, and ids of every length
--- worker
m0 text=a|b|c|d|e|f|g|h|i|j|k|l|m|n|o|p|q|r|s|t|u|v|w|x|y|z|A|B|C|D|E|F|G|H merge=16 gate=finish
m1 text=a|b|c|d|e|f|g|h|i|j|k|l|m|n|o|p|q|r|s|t|u|v|w|x|y|z|A|B|C|D|E|F|G|H merge=5
--- request
POST /v1/completions
{"model":"m","prompt":"hello","stream":true,"max_tokens":100}
--- steps
nginx expect attached
nginx expect attached
client request
client expect abcdefghijklmnop
client expect qrstuvwxyzABCDEF
worker m0 kill
client expect GH
client expect [DONE]
--- worker_log
m1 message [^\n]*ids: 127 ids: 128 [^\n]*ids: 131 \}



=== TEST 16: a rate that cannot be
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{m0}}; failover_rate 0; }
--- must_die
--- error_log
invalid rate "0" in "failover_rate"



=== TEST 17: a burst that cannot be
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{m0}}; failover_rate 5 burst=x; }
--- must_die
--- error_log
invalid parameter "burst=x" in "failover_rate"



=== TEST 18: D leaves in mid-answer: its ticket is used up, and is handed to nobody
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{p0}}; worker {{d0}}; worker {{d1}} backup; }
--- worker
p0 role=prefill
d0 role=decode fail=DRAINING
d1 role=decode
--- steps
nginx expect attached
nginx expect attached
nginx expect attached
client request
client expect t2
client expect [DONE]
worker p0 expect submit request=1 attempt=2
worker d1 expect submit request=1 attempt=2 route=DECODE
worker d1 lacks attempt=1
