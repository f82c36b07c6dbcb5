# Who waits, and in which order they are served: classes, shares, deadlines.
# The worker serves one request at a time, and requests are numbered as they
# come: the order in which it hears of them is what is tested.

use Test::Nginx::Socket 'no_plan';

add_block_preprocessor(sub {
    my ($block) = @_;

    return if defined $block->must_die;

    defined $block->worker
        or $block->set_value(worker => 'm0 gate=finish');
    defined $block->request
        or $block->set_value(request => <<'END');
POST /v1/completions
{"model":"m","prompt":"hello","stream":true}
END

    my $queue = $block->queue // '';
    defined $block->http_config
        or $block->set_value(http_config => <<"END");
pd_zone pd:1m;
pd_cluster chat { worker {{m0}} max_streams=1; $queue }
END
    defined $block->config
        or $block->set_value(config => <<'END');
pd_class $http_x_class;
pd_tenant "tenant-$http_x_tenant";
location /v1/ {
    pd_pass chat;
    add_header X-Class $pd_class always;
}
END
});

run_tests();

__DATA__

=== TEST 1: interactive comes first, and the worker hears of it
--- more_headers_client3
X-Class: interactive
--- steps
client request
client expect t1
client2 request
sleep 0.1
client3 request
sleep 0.1
worker m0 release
client3 expect t1
client2 lacks t0
worker m0 release
client2 expect t1
worker m0 release
client2 finish
--- response_headers
X-Class: standard
--- worker_log
submit request=1
submit request=3
message .*class: CLASS_INTERACTIVE
submit request=2



=== TEST 2: what is no class is standard
--- more_headers
X-Class: urgent
--- worker
m0
--- response_headers
X-Class: standard
--- no_worker_log
class:



=== TEST 3: a tenant has a class of its own
--- config
pd_key_file {{root}}/keys;
location /v1/ { pd_pass chat; add_header X-Class $pd_class always; }
--- user_files
>>> keys
tenant acme class=interactive
key acme 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
--- more_headers
Authorization: Bearer test
--- worker
m0
--- response_headers
X-Class: interactive



=== TEST 4: pd_class comes before it, where it names one
--- config
pd_key_file {{root}}/keys;
pd_class $http_x_class;
location /v1/ { pd_pass chat; add_header X-Class $pd_class always; }
--- user_files
>>> keys
tenant acme class=interactive
key acme 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
--- more_headers
Authorization: Bearer test
X-Class: standard
--- more_headers_client2
Authorization: Bearer test
--- worker
m0
--- steps
client2 request
client2 finish
client request
client finish
--- response_headers
X-Class: standard



=== TEST 5: standard does not starve: each eighth turn is its own
--- timeout: 10
--- more_headers_client2
X-Class: standard
--- more_headers
X-Class: interactive
--- steps
client request
client expect t1
client2 request
sleep 0.1
client3 request
sleep 0.05
client4 request
sleep 0.05
client5 request
sleep 0.05
client6 request
sleep 0.05
client7 request
sleep 0.05
client8 request
sleep 0.05
client9 request
sleep 0.05
client10 request
sleep 0.1
worker m0 release
client3 expect t1
worker m0 release
client4 expect t1
worker m0 release
client5 expect t1
worker m0 release
client6 expect t1
worker m0 release
client7 expect t1
worker m0 release
client8 expect t1
worker m0 release
client9 expect t1
worker m0 release
client2 expect t1
client10 lacks t0
worker m0 release
client10 expect t1
worker m0 release
client10 finish



=== TEST 6: who sends many waits behind himself
--- more_headers_client2
X-Tenant: many
--- more_headers_client3
X-Tenant: many
--- more_headers_client4
X-Tenant: many
--- more_headers_client5
X-Tenant: one
--- steps
client request
client expect t1
client2 request
sleep 0.1
client3 request
sleep 0.1
client4 request
sleep 0.1
client5 request
sleep 0.1
worker m0 release
client2 expect t1
worker m0 release
client5 expect t1
worker m0 release
client3 expect t1
worker m0 release
client4 expect t1
worker m0 release
client4 finish
--- worker_log
submit request=2
submit request=5
submit request=3
submit request=4



=== TEST 7: shares go by weight
--- config
pd_key_file {{root}}/keys;
pd_tenant $http_x_tenant;
location /v1/ { pd_pass chat; }
--- user_files
>>> keys
tenant heavy weight=2
tenant light
tenant other
--- more_headers
X-Tenant: heavy
--- more_headers_client6
X-Tenant: light
--- more_headers_client7
X-Tenant: light
--- more_headers_client8
X-Tenant: other
--- timeout: 10
--- steps
client8 request
client8 expect t1
client request
sleep 0.05
client2 request
sleep 0.05
client3 request
sleep 0.05
client4 request
sleep 0.05
client6 request
sleep 0.05
client7 request
sleep 0.1
worker m0 release
client expect t1
worker m0 release
client6 expect t1
worker m0 release
client2 expect t1
worker m0 release
client3 expect t1
worker m0 release
client7 expect t1
worker m0 release
client4 expect t1
worker m0 release
client4 finish
--- worker_log
submit request=2
submit request=6
submit request=3
submit request=4
submit request=7
submit request=5



=== TEST 8: the order is one for all processes
--- workers: 2
--- more_headers_client2
X-Tenant: many
--- more_headers_client3
X-Tenant: many
--- more_headers_client4
X-Tenant: one
--- more_headers_client5
X-Class: interactive
--- steps
worker m0 expect attach
worker m0 expect attach
client connect 0
client2 connect 1
client3 connect 1
client4 connect 0
client5 connect 1
client request
client expect t1
client2 request
sleep 0.1
client3 request
sleep 0.1
client4 request
sleep 0.1
client5 request
sleep 0.1
worker m0 release
client5 expect t1
worker m0 release
client2 expect t1
client3 lacks t0
worker m0 release
client4 expect t1
client3 lacks t0
worker m0 release
client3 expect t1
worker m0 release
client3 finish



=== TEST 9: a queue that is full of one class has room for the other
--- queue: queue 1;
--- more_headers_client4
X-Class: interactive
--- steps
client request
client expect t1
client2 request
sleep 0.1
client3 request
client3 finish
client3 status 503
client4 request
sleep 0.1
worker m0 release
client4 expect t1
worker m0 release
client2 expect t1
worker m0 release
client2 finish



=== TEST 10: the queue has a limit of bytes
--- queue: queue 100 bytes=1k;
--- request_client2 eval
'POST /v1/completions
{"model":"m","prompt":"' . 'x' x 900 . '","stream":true}'
--- request_client3 eval
'POST /v1/completions
{"model":"m","prompt":"' . 'x' x 200 . '","stream":true}'
--- steps
client request
client expect t1
client2 request
sleep 0.1
client3 request
client3 finish
client3 status 503
worker m0 release
client2 expect t1
worker m0 release
client2 finish
--- error_log
the queue of cluster "chat" is full



=== TEST 11: how long a request waits may be said for a location
--- config
location /v1/ { pd_queue_timeout 1s; pd_pass chat; }
--- steps
nginx expect attached
client2 request
client2 expect t1
client request
client finish
worker m0 release
client2 finish
--- error_code: 503
--- response_headers_like
Retry-After: \d+
--- response_body_like: No worker had room in time



=== TEST 12: a client may say how much time it has
--- more_headers
X-Request-Timeout-Ms: 1500
--- error_code: 200
--- steps
nginx expect attached
client request
client expect t1
client expect took longer than it may
worker m0 expect cancel request=1 attempt=1 reason=DEADLINE
--- worker_log
message .*deadline_us: 1[0-5]\d\d000



=== TEST 13: or nothing that can be understood
--- more_headers
X-Request-Timeout-Ms: soon
--- error_code: 400
--- response_body_like: x-request-timeout-ms must be a number from 1 to 86400000
--- no_worker_log
submit



=== TEST 14: whose time would run out in the queue hears of it at once
--- more_headers
X-Request-Timeout-Ms: 200
--- more_headers_client2
X-None: none
--- more_headers_client3
X-None: none
--- more_headers_client4
X-None: none
--- steps
client2 request
client2 expect t1
client3 request
sleep 0.5
worker m0 release
client3 expect t1
client request
client finish
client4 request
sleep 0.1
worker m0 release
client4 expect t1
worker m0 release
client4 finish
--- error_code: 503
--- response_headers_like
Retry-After: \d+
--- response_body_like: would wait for longer than it may
--- error_log
in the queue of cluster "chat" it would wait for longer than 200 ms
--- no_worker_log
reason=DEADLINE



=== TEST 15: Retry-After is what the queue needs
--- queue: queue 2;
--- timeout: 10
--- steps
client2 request
client2 expect t1
client3 request
sleep 1.2
worker m0 release
client3 expect t1
client4 request
sleep 0.1
client5 request
sleep 0.1
client request
client finish
worker m0 release
client4 expect t1
worker m0 release
client5 expect t1
worker m0 release
client5 finish
--- error_code: 503
--- response_headers_like
Retry-After: [4-9]



=== TEST 16: who leaves the queue was no burden
--- more_headers_client2
X-Tenant: many
--- more_headers_client3
X-Tenant: many
--- more_headers_client4
X-Tenant: one
--- more_headers_client5
X-Tenant: one
--- more_headers_client6
X-Tenant: many
--- steps
client request
client expect t1
client2 request
sleep 0.1
client3 request
sleep 0.1
client4 request
sleep 0.1
client5 request
sleep 0.1
client2 close
client3 close
sleep 0.1
client6 request
sleep 0.1
worker m0 release
client4 expect t1
worker m0 release
client6 expect t1
client5 lacks t0
worker m0 release
client5 expect t1
worker m0 release
client5 finish



=== TEST 17: a queue of nonsense
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker 127.0.0.1:1; queue 5 bytes=0; }
--- must_die
--- error_log
invalid parameter "bytes=0" in "queue": use timeout=1ms to timeout=1h, or bytes=SIZE
