# Workers that know no messages but those of an earlier protocol.

use Test::Nginx::Socket 'no_plan';

add_block_preprocessor(sub {
    my ($block) = @_;

    $block->set_value(config => 'location /v1/ { pd_pass chat; }');
    $block->set_value(request => <<'END');
POST /v1/completions
{"model":"m","prompt":"hello","stream":true,"logprobs":2}
END
    $block->set_value(http_config => 'pd_zone pd:1m; pd_cluster chat { '
        . $block->cluster . ' readiness requests=3; }');
});

run_tests();

__DATA__

=== TEST 1: a pair of them
--- cluster
worker {{p0}}; worker {{d0}};
--- worker
p0 role=prefill frozen=1
d0 role=decode frozen=1
--- steps
nginx expect attached
nginx expect attached
client request
client expect t2
client expect [DONE]



=== TEST 2: an old and a new one
--- cluster
worker {{p0}}; worker {{d0}};
--- worker
p0 role=prefill
d0 role=decode frozen=1
--- steps
nginx expect attached
nginx expect attached
client request
client expect [DONE]



=== TEST 3: an answer goes on from an old one to a new one, and back
--- cluster
worker {{m0}}; worker {{m1}} backup; worker {{m2}} backup;
--- worker
m0 frozen=1 text=a|b|c|d fail=CANCELLED
m1 text=a|b|c|d fail=CANCELLED
m2 frozen=1 text=a|b|c|d
--- steps
nginx expect attached
nginx expect attached
nginx expect attached
client request
client expect "d"
client expect [DONE]
--- worker_log
m2 message [^\n]*generated \{ ids: 100 ids: 101 \}



=== TEST 4: its load is counted, its drain is heard
--- cluster
worker {{m0}} max_streams=1; worker {{m1}} backup;
--- worker
m0 frozen=1 gate=token
m1
--- steps
nginx expect attached
nginx expect attached
client request
client expect t0
client2 request
client2 expect [DONE]
worker m1 expect submit request=2
worker m0 drain
nginx expect drains
worker m0 release
worker m0 release
client expect [DONE]



=== TEST 5: cancels reach it
--- cluster
worker {{m0}};
--- worker
m0 frozen=1 gate=token
--- steps
client request
client expect t0
client close
worker m0 expect cancel request=1 attempt=1 reason=CLIENT_GONE



=== TEST 5: it tells nothing of other frontends, of which there may be none
--- cluster
worker {{m0}}; ejection faults=1000;
--- worker
m0 frozen=1 refuse=INTERNAL:6
--- steps
worker m0 expect heartbeat
nginx ask 3 500
nginx expect is degraded: 0 of 3 requests have finished; this frontend stays: it knows of no other to compare with
nginx ask 1 200
