# A client that leaves: both workers are told at once, in each stage.

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

=== TEST 1: before P has placed it
--- worker
p0 role=prefill gate=placed
d0 role=decode
--- steps
client request
worker p0 expect submit
client close
worker p0 expect cancel request=1 attempt=1 reason=CLIENT_GONE
--- no_worker_log
d0 submit



=== TEST 2: during prefill
--- worker
p0 role=prefill gate=first
d0 role=decode gate=first
--- steps
client request
worker d0 expect submit
client close
worker p0 expect cancel request=1 attempt=1 reason=CLIENT_GONE
worker d0 expect cancel request=1 attempt=1 reason=CLIENT_GONE



=== TEST 3: during the hand-off
--- worker
p0 role=prefill
d0 role=decode gate=placed
--- steps
client request
worker d0 expect submit
sleep 0.1
client close
worker p0 expect cancel request=1 attempt=1 reason=CLIENT_GONE
worker d0 expect cancel request=1 attempt=1 reason=CLIENT_GONE



=== TEST 4: during decode, between two tokens
--- worker
p0 role=prefill
d0 role=decode gate=token
--- steps
client request
client expect t0
client close
worker d0 expect cancel request=1 attempt=1 reason=CLIENT_GONE
worker p0 expect cancel request=1 attempt=1 reason=CLIENT_GONE



=== TEST 5: a cancel overtakes a submission that is still being sent
--- config
location /v1/ { pd_pass chat; client_max_body_size 8m; }
--- request eval
'POST /v1/completions
{"model":"m","stream":true,"prompt":"' . "0123456789" x 700000 . '"}'
--- worker
p0 role=prefill
d0 role=decode
--- steps
nginx expect attached
nginx expect attached
worker p0 stop
client request
sleep 0.3
client close
sleep 0.1
worker p0 continue
worker p0 expect cancel request=1 attempt=1 reason=CLIENT_GONE
worker p0 lacks submit request=1



=== TEST 6: a finished request is not cancelled
--- worker
p0 role=prefill
d0 role=decode
--- steps
client request
client expect t2
client finish
client close
sleep 0.2
--- no_worker_log
cancel



=== TEST 7: in the queue: no worker ever hears of it, and its place is free
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
sleep 0.1
client2 close
sleep 0.1
client3 request
sleep 0.1
worker m0 release
client expect t1
worker m0 release
client finish
worker m0 expect submit request=3
client3 expect t0
--- worker_log
submit request=1
submit request=3
--- no_worker_log
submit request=2



=== TEST 8: the FIN comes together with the request
--- worker
p0 role=prefill gate=placed
d0 role=decode
--- steps
nginx expect attached
nginx expect attached
client2 request_and_end
worker p0 expect submit
worker p0 expect cancel request=1 attempt=1 reason=CLIENT_GONE
--- no_worker_log
d0 submit



=== TEST 9: a reset before P has placed it
--- worker
p0 role=prefill gate=placed
d0 role=decode
--- steps
nginx expect attached
nginx expect attached
client2 request
worker p0 expect submit
client2 reset
worker p0 expect cancel request=1 attempt=1 reason=CLIENT_GONE



=== TEST 10: a reset during prefill
--- worker
p0 role=prefill gate=first
d0 role=decode gate=first
--- steps
client2 request
worker d0 expect submit
client2 reset
worker p0 expect cancel request=1 attempt=1 reason=CLIENT_GONE
worker d0 expect cancel request=1 attempt=1 reason=CLIENT_GONE



=== TEST 11: a reset during the hand-off
--- worker
p0 role=prefill
d0 role=decode gate=placed
--- steps
client2 request
worker d0 expect submit
sleep 0.1
client2 reset
worker p0 expect cancel request=1 attempt=1 reason=CLIENT_GONE
worker d0 expect cancel request=1 attempt=1 reason=CLIENT_GONE



=== TEST 12: a reset between two tokens
--- worker
p0 role=prefill
d0 role=decode gate=token
--- steps
client2 request
client2 expect t0
client2 reset
worker d0 expect cancel request=1 attempt=1 reason=CLIENT_GONE
worker p0 expect cancel request=1 attempt=1 reason=CLIENT_GONE
