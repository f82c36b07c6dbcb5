# A worker dies, in each stage of a request.

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

=== TEST 1: P, before it has placed the request: another P
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{p0}}; worker {{p1}} backup; worker {{d0}}; }
--- worker
p0 role=prefill die=placed
p1 role=prefill
d0 role=decode
--- steps
nginx expect attached
nginx expect attached
nginx expect attached
client request
client expect t2
worker p0 expect submit request=1 attempt=1
worker p1 expect submit request=1 attempt=2
worker d0 expect submit request=1 attempt=2
worker d0 lacks attempt=1
--- error_log
lost worker



=== TEST 2: P, after D has the ticket: D alone judges, and goes on
--- worker
p0 role=prefill gate=first
d0 role=decode gate=placed,first
--- steps
client request
worker d0 expect submit request=1 attempt=1
worker p0 kill
nginx expect lost worker
worker d0 release
worker d0 release
client expect t2
client finish
--- no_worker_log
cancel
attempt=2



=== TEST 3: P, after D has the ticket: D finds the hand-off lost
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{p0}}; worker {{p1}} backup; worker {{d0}}; }
--- worker
p0 role=prefill gate=first
p1 role=prefill
d0 role=decode gate=submit refuse=TICKET:1
--- steps
nginx expect attached
nginx expect attached
nginx expect attached
client request
worker d0 expect submit request=1 attempt=1
worker p0 kill
nginx expect lost worker
worker d0 release
worker d0 expect submit request=1 attempt=2
worker d0 release
client expect t2
--- worker_log
d0 submit request=1 attempt=1 [^\n]*ticket=p0/1
d0 submit request=1 attempt=2 [^\n]*ticket=p1/1



=== TEST 4: D, before it has accepted: another pair, and P is told
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{p0}}; worker {{d0}}; worker {{d1}} backup; }
--- worker
p0 role=prefill
d0 role=decode die=submit
d1 role=decode
--- steps
nginx expect attached
nginx expect attached
nginx expect attached
client request
client expect t2
client finish
--- response_body_like
^(?!.*t0 .*t0 )
--- worker_log
d1 submit request=1 attempt=2
p0 cancel request=1 attempt=1 reason=REFUSED_ELSEWHERE
p0 submit request=1 attempt=2



=== TEST 5: D, in the middle of an answer that cannot go on: an error
--- config
location /v1/ { pd_pass chat; pd_failover_buffer 0; }
--- worker
p0 role=prefill
d0 role=decode gate=token
--- steps
client request
client expect t0
worker d0 kill
client expect The worker was lost in the middle of the answer
client finish
worker p0 expect cancel request=1 attempt=1
--- error_log
failed in decode, prefill "127.0.0.1:
--- no_worker_log
attempt=2



=== TEST 6: a mixed worker, before its first token
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{m0}}; worker {{m1}} backup; }
--- worker
m0 die=first
m1
--- steps
nginx expect attached
nginx expect attached
client request
client expect t2
--- worker_log
m0 submit request=1 attempt=1
m1 submit request=1 attempt=2



=== TEST 7: a request that was there when two workers died goes no further
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{m0}}; worker {{m1}}; worker {{m2}}; }
--- worker
m0 die=placed
m1 die=placed
m2 die=placed
--- steps
nginx expect attached
nginx expect attached
nginx expect attached
client request
client finish
nginx expect lost worker
nginx expect lost worker
nginx lacks attempt=3
--- error_code: 503
--- response_body_like
The worker was lost



=== TEST 8: the only worker dies: its request waits until it is back
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{m0}}; }
--- worker
m0 gate=placed
--- steps
client request
worker m0 expect submit request=1 attempt=1
worker m0 kill
nginx expect lost worker
worker m0 start
worker m0 expect submit request=1 attempt=2
worker m0 release
client expect t2



=== TEST 9: a worker that drains gets nothing new, ends what it has, and has left, not died
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{m0}}; worker {{m1}} backup; }
--- worker
m0 gate=token
m1
--- steps
nginx expect attached
nginx expect attached
client request
client expect t0
worker m0 drain
nginx expect /worker "127.0.0.1:\d+" drains/
client2 request
client2 expect t2
worker m0 release
worker m0 release
client finish
worker m0 kill
nginx expect parted from worker
--- no_error_log
lost worker
--- worker_log
m0 submit request=1
m1 submit request=2
