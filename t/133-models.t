# Several models behind one frontend: what is listed can be routed to, now.

use Test::Nginx::Socket 'no_plan';

add_block_preprocessor(sub {
    my ($block) = @_;

    $block->set_value(config => 'location /v1/ { pd_pass chat; }');
    defined $block->request
        or $block->set_value(request => "GET /v1/models\n");
    defined $block->http_config
        or $block->set_value(http_config => <<'END');
pd_zone pd:1m;
pd_cluster chat {
    worker {{a0}}; worker {{b0}} role=prefill; worker {{b1}} role=decode;
}
END
});

run_tests();

__DATA__

=== TEST 1: a worker that is down takes its model off the list, and no more
--- worker
a0 model=a
b0 model=b role=prefill
b1 model=b role=decode
--- steps
worker a0 expect heartbeat
worker b0 expect heartbeat
worker b1 expect heartbeat
client1 request
client1 expect /"id":"a".*"id":"b"/
client1 status 200
worker b1 kill
nginx expect lost worker
client2 request
client2 finish
client2 status 200
client2 expect "id":"a"
client2 lacks "id":"b"
worker a0 kill
nginx expect lost worker
client3 request
client3 finish
client3 status 200
client3 expect "data":[]
worker b1 start
nginx expect attached
client4 request
client4 expect "id":"b"
client4 lacks "id":"a"



=== TEST 2: each request goes to its own
--- worker
a0 model=a
b0 model=b role=prefill
b1 model=b role=decode
--- request_client1
POST /v1/completions
{"model":"a","prompt":"hello","stream":true}
--- request_client2
POST /v1/completions
{"model":"b","prompt":"hello","stream":true}
--- request_client3
POST /v1/completions
{"model":"c","prompt":"hello","stream":true}
--- steps
worker a0 expect heartbeat
worker b0 expect heartbeat
worker b1 expect heartbeat
client1 request
client1 expect t2
worker a0 expect /submit [^\n]* model=a$/
client2 request
client2 expect t2
worker b0 expect /submit [^\n]* model=b$/
client3 request
client3 finish
client3 status 404
client3 expect model_not_found



=== TEST 3: one name, other weights: never a pair, and not on the list
--- worker
a0 model=a
b0 model=b role=prefill fingerprint=old
b1 model=b role=decode fingerprint=new
--- steps
worker a0 expect heartbeat
worker b0 expect heartbeat
worker b1 expect heartbeat
nginx expect with different weights, and are never paired
client request
client finish
client lacks "id":"b"
client expect "id":"a"
