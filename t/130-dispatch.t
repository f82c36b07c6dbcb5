# The way of a job: which workers it goes to, in which order they are told
# what, whose tokens the client gets, and what a refusal leads to.

use Test::Nginx::Socket 'no_plan';

add_block_preprocessor(sub {
    my ($block) = @_;

    $block->set_value(config => 'location /v1/ { pd_pass chat; }');
    defined $block->request
        or $block->set_value(request => <<'END');
POST /v1/completions
{"model":"m","prompt":"hello","stream":true}
END
    defined $block->http_config
        or $block->set_value(http_config => <<'END');
pd_zone pd:1m;
pd_cluster chat { worker {{p0}} role=prefill; worker {{d0}} role=decode; }
END
});

run_tests();

__DATA__

=== TEST 1: P places, D gets the ticket, tokens come once and in order
--- worker
p0 role=prefill
d0 role=decode
--- steps
client request
client expect /t0 .*t1 .*t2 /
client finish
worker p0 expect submit request=1 attempt=1 route=PREFILL
worker d0 expect /submit request=1 attempt=1 route=DECODE [^\n]* ticket=p0\/1$/
--- no_worker_log
cancel
protocol error



=== TEST 2: D gets the options and not the prompt
--- worker
p0 role=prefill
d0 role=decode
--- steps
client request
client expect t2
worker p0 expect /message .*hello/
worker d0 expect /message .*sampling/
worker d0 lacks hello



=== TEST 3: D has the ticket before P computes
--- worker
p0 role=prefill gate=first
d0 role=decode gate=first
--- steps
client request
worker d0 expect submit
client lacks t0
worker p0 release
client expect t0
worker d0 release
client expect t2



=== TEST 4: the first token is P's, and waits until D has accepted
--- worker
p0 role=prefill
d0 role=decode gate=placed,token
--- steps
client request
worker d0 expect submit
sleep 0.2
client lacks t0
worker d0 release
client expect t0
client lacks t1
worker d0 release
client expect t1
worker d0 release
client expect t2



=== TEST 5: each step's token arrives when it is there
--- worker
m0 gate=first,token
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{m0}}; }
--- steps
client request
worker m0 release
client expect t0
client lacks t1
worker m0 release
client expect t1
client lacks t2
worker m0 release
client expect t2



=== TEST 6: D overtakes P, and P's token is then a repeat
--- worker
p0 role=prefill gate=first
d0 role=decode gate=finish
--- steps
client request
client expect /t0 .*t1 /
worker p0 release
sleep 0.1
worker d0 release
client expect t2
client finish
--- response_body_like
^(?!.*t0 .*t0 )



=== TEST 7: several tokens in a step
--- worker
p0 role=prefill text=a|b|c|d|e
d0 role=decode merge=2 text=a|b|c|d|e
--- steps
client request
client expect /a.*bc.*de/



=== TEST 8: one token needs no D
--- request
POST /v1/completions
{"model":"m","prompt":"hello","stream":true,"max_tokens":1}
--- worker
p0 role=prefill
d0 role=decode
--- steps
client request
client expect t0
client finish
worker p0 expect cancel request=1 attempt=1 reason=FINISHED_ELSEWHERE
--- no_worker_log
d0 submit



=== TEST 9: an answer that ends with P's token ends D's part
--- worker
p0 role=prefill text=only gate=first
d0 role=decode gate=placed
--- steps
client request
worker d0 expect submit
worker p0 release
client expect only
client finish
worker d0 expect cancel request=1 attempt=1 reason=FINISHED_ELSEWHERE
worker p0 expect cancel request=1 attempt=1 reason=FINISHED_ELSEWHERE



=== TEST 10: a ticket that D refuses goes to another D
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{p0}}; worker {{d0}}; worker {{d1}} backup; }
--- worker
p0 role=prefill
d0 role=decode refuse=CAPACITY
d1 role=decode
--- steps
nginx expect attached
nginx expect attached
nginx expect attached
client request
client expect t2
worker d0 expect /submit request=1 attempt=1 [^\n]*ticket=p0\/1$/
worker d1 expect /submit request=1 attempt=1 [^\n]*ticket=p0\/1$/
--- no_worker_log
cancel
p0 submit request=1 attempt=2



=== TEST 11: D refuses and is alone: asked again when it reports room
--- worker
p0 role=prefill
d0 role=decode refuse=CAPACITY:1 report=100
--- steps
client request
client expect t2
worker p0 expect submit request=1 attempt=1
worker p0 expect cancel request=1 attempt=1 reason=REFUSED_ELSEWHERE
worker p0 expect submit request=1 attempt=2
worker d0 expect submit request=1 attempt=1
worker d0 expect submit request=1 attempt=2



=== TEST 12: three refusals are enough
--- worker
p0 role=prefill
d0 role=decode refuse=CAPACITY report=50 message=no_room_for_it retry_after=4500
--- error_code: 503
--- response_body_like
no room for it
--- worker_log
d0 submit request=1 attempt=1
d0 submit request=1 attempt=2
d0 submit request=1 attempt=3
p0 cancel request=1 attempt=3



=== TEST 13: P refuses: another P
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{p0}}; worker {{p1}} backup; worker {{d0}}; }
--- worker
p0 role=prefill refuse=DRAINING
p1 role=prefill
d0 role=decode
--- steps
nginx expect attached
nginx expect attached
nginx expect attached
client request
client expect t2
--- worker_log
d0 submit request=1 attempt=2
p0 submit request=1 attempt=1
p1 submit request=1 attempt=2



=== TEST 14: a bad request is the client's affair
--- worker
p0 role=prefill refuse=INVALID message=this_is_wrong param=prompt
d0 role=decode
--- error_code: 400
--- response_body_like
this is wrong.*prompt
--- no_worker_log
d0 submit



=== TEST 15: too long a context
--- worker
p0 role=prefill refuse=CONTEXT_LENGTH message=too_long
d0 role=decode
--- error_code: 400
--- response_body_like
too long.*context_length_exceeded



=== TEST 16: an internal error of a worker
--- worker
p0 role=prefill
d0 role=decode refuse=INTERNAL message=cache_is_broken
--- steps
client request
client finish
worker p0 expect cancel request=1 attempt=1
--- error_code: 500
--- response_body_like
cache is broken
--- error_log
failed in the hand-off, prefill "127.0.0.1:



=== TEST 17: a lost hand-off is tried anew, with another ticket
--- worker
p0 role=prefill
d0 role=decode refuse=TICKET:1
--- steps
client request
client expect t2
worker p0 expect cancel request=1 attempt=1 reason=REFUSED_ELSEWHERE
worker d0 expect /submit request=1 attempt=1 [^\n]*ticket=p0\/1$/
worker d0 expect /submit request=1 attempt=2 [^\n]*ticket=p0\/2$/



=== TEST 18: a failure in the middle of the answer ends it with an error
--- worker
p0 role=prefill
d0 role=decode fail=INTERNAL message=it_broke
--- steps
client request
client expect t0
client expect it broke
client finish



=== TEST 19: a short prompt goes straight to D
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{p0}}; worker {{d0}}; direct_threshold 100; }
--- worker
p0 role=prefill
d0 role=decode
--- steps
client request
client expect t2
worker d0 expect route=DIRECT
--- no_worker_log
p0 submit



=== TEST 20: a long one does not
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{p0}}; worker {{d0}}; direct_threshold 100; }
--- request eval
'POST /v1/completions
{"model":"m","stream":true,"prompt":"' . "hello " x 100 . '"}'
--- worker
p0 role=prefill
d0 role=decode
--- steps
client request
client expect t2
worker p0 expect route=PREFILL
worker d0 expect route=DECODE



=== TEST 21: D says that it is too much to compute there
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{p0}}; worker {{d0}}; direct_threshold 100; }
--- worker
p0 role=prefill
d0 role=decode refuse=REDIRECT:1
--- steps
client request
client expect t2
--- worker_log
d0 submit request=1 attempt=1 route=DIRECT
d0 submit request=1 attempt=2 route=DECODE
p0 submit request=1 attempt=2 route=PREFILL



=== TEST 22: a mixed worker helps where no pair fits
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{p0}}; worker {{m0}}; }
--- worker
p0 role=prefill
m0
--- steps
nginx expect attached
nginx expect attached
client request
client expect t2
--- worker_log
m0 submit request=1 attempt=1 route=DIRECT
--- no_worker_log
p0 submit



=== TEST 23: a model that nobody serves
--- request
POST /v1/completions
{"model":"gpt","prompt":"hello"}
--- worker
p0 role=prefill
d0 role=decode
--- steps
nginx expect attached
nginx expect attached
client request
client finish
--- error_code: 404
--- response_body_like
The model `gpt` does not exist



=== TEST 24: each model has its workers
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{m0}}; worker {{m1}}; }
--- request
POST /v1/completions
{"model":"b","prompt":"hello","stream":true}
--- worker
m0 model=a
m1 model=b
--- steps
nginx expect attached
nginx expect attached
client request
client expect t2
--- worker_log
m1 submit
--- no_worker_log
m0 submit



=== TEST 25: prefill goes where the fewest prompt tokens wait
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{p0}}; worker {{p1}}; worker {{d0}}; }
--- worker
p0 role=prefill busy=5000 report=50
p1 role=prefill busy=10 report=50
d0 role=decode
--- steps
worker p0 expect attach
worker p1 expect attach
worker d0 expect attach
sleep 0.2
client request
client expect t2
--- worker_log
p1 submit
--- no_worker_log
p0 submit



=== TEST 26: decode goes to the emptiest pool, of the same zone if it can
--- http_config
pd_zone pd:1m;
pd_cluster chat {
    worker {{p0}} zone=a;
    worker {{d0}} zone=b;
    worker {{d1}} zone=a;
}
--- worker
p0 role=prefill
d0 role=decode
d1 role=decode
--- request_client2
POST /v1/completions
{"model":"m","prompt":"again","stream":true}
--- steps
nginx expect attached
nginx expect attached
nginx expect attached
client request
client expect t2
client2 request
client2 expect t2
--- worker_log
d1 submit request=1
d1 submit request=2
--- no_worker_log
d0 submit



=== TEST 27: "down" is left alone, "backup" waits for need
--- http_config
pd_zone pd:1m;
pd_cluster chat {
    worker {{m0}} down;
    worker {{m1}} backup;
    worker {{m2}};
}
--- worker
m0
m1
m2
--- steps
nginx expect attached
nginx expect attached
client request
client expect t2
--- worker_log
m2 submit
--- no_worker_log
m0 attach
m1 submit



=== TEST 28: a large submission travels in parts
--- request eval
'POST /v1/completions
{"model":"m","stream":true,"prompt":"' . "0123456789" x 10000 . '"}'
--- worker
p0 role=prefill max_len=100000
d0 role=decode
--- steps
client request
client expect t2
--- worker_log
d0 submit request=1 attempt=1 route=DECODE parts=1 
p0 part request=1 of=100\d\d\d
p0 part request=1 of=100\d\d\d
p0 part request=1 of=100\d\d\d
p0 submit request=1 attempt=1 route=PREFILL parts=4 
--- no_worker_log
protocol error



=== TEST 29: equal workers take turns
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{m0}}; worker {{m1}}; }
--- worker
m0
m1
--- steps
nginx expect attached
nginx expect attached
client request
client expect t2
client2 request
client2 expect t2
--- worker_log
m0 submit
m1 submit



=== TEST 30: a worker that skips a token has lost it
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{m0}}; }
--- worker
m0 skip=1
--- steps
client request
client expect t0
client expect The worker has sent token 2 in place of token 1
client finish
worker m0 expect cancel



=== TEST 31: a worker that ends without a reason
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{m0}}; }
--- worker
m0 finish=none
--- steps
client request
client expect t2
client expect The worker has ended without a reason
