# Groups of workers by their revision.

use Test::Nginx::Socket 'no_plan';

add_block_preprocessor(sub {
    my ($block) = @_;

    $block->set_value(config => 'location /v1/ { pd_pass chat; }');
    defined $block->request
        or $block->set_value(request => <<'END');
POST /v1/completions
{"model":"m","prompt":"hello","stream":true}
END
    $block->set_value(http_config => 'pd_zone pd:1m; pd_cluster chat { '
        . $block->cluster . ' }');
});

run_tests();

__DATA__

=== TEST 1: no pair of two revisions
--- cluster
worker {{p0}}; worker {{d0}}; worker {{d1}} backup;
--- worker
p0 role=prefill revision=a
d0 role=decode revision=b
d1 role=decode revision=a
--- steps
nginx expect attached
nginx expect attached
nginx expect attached
client request
client expect [DONE]
worker d1 expect submit request=1
nginx lacks are never paired
--- no_worker_log
d0 submit



=== TEST 2: an answer goes on in its revision
--- cluster
worker {{m0}}; worker {{m1}} backup; worker {{m2}} backup;
--- worker
m0 revision=a gate=token
m1 revision=b
m2 revision=a
--- steps
nginx expect attached
nginx expect attached
nginx expect attached
client request
client expect t0
worker m0 kill
client expect t2
worker m2 expect submit request=1 attempt=2
--- no_worker_log
m1 submit



=== TEST 3: before its first token it may go anywhere
--- cluster
worker {{m0}}; worker {{m1}} backup;
--- worker
m0 revision=a die=first
m1 revision=b
--- steps
nginx expect attached
nginx expect attached
client request
client expect [DONE]
worker m1 expect submit request=1 attempt=2



=== TEST 4: weights between revisions
--- cluster
worker {{m0}}; worker {{m1}}; worker {{m2}}; revision a weight=3; revision "" weight=1; revision c weight=0;
--- worker
m0 revision=a
m1
m2 revision=c
--- steps
nginx expect attached
nginx expect attached
nginx expect attached
client1 request
client1 expect [DONE]
client2 request
client2 expect [DONE]
client3 request
client3 expect [DONE]
client4 request
client4 expect [DONE]
worker m0 expect submit request
worker m0 expect submit request
worker m0 expect submit request
worker m1 expect submit request
worker m1 lacks /submit request.*submit request/
--- no_worker_log
m2 submit



=== TEST 5: a revision that cannot serve has no share
--- cluster
worker {{p0}}; worker {{m1}} backup; revision a weight=3; revision b weight=1;
--- worker
p0 role=prefill revision=a
m1 revision=b
--- steps
nginx expect attached
nginx expect attached
client request
client expect [DONE]
client2 request
client2 expect [DONE]



=== TEST 6: if none can, all may
--- cluster
worker {{m0}}; revision a weight=1;
--- worker
m0 revision=x
--- steps
client request
client expect [DONE]



=== TEST 7: a revision twice
--- cluster
worker {{m0}}; revision a weight=1; revision a weight=2;
--- worker
m0
--- must_die
--- error_log
"revision" directive is duplicate



=== TEST 8: a weight that cannot be
--- cluster
worker {{m0}}; revision a weight=1001;
--- worker
m0
--- must_die
--- error_log
invalid "revision a weight=1001"
