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
