# Which workers are fit: progress, faults in a row, broken pairs.

use Test::Nginx::Socket 'no_plan';

add_block_preprocessor(sub {
    my ($block) = @_;

    my $ejection = $block->ejection // 'stall=1s backoff=100ms';
    chomp $ejection;

    defined $block->config
        or $block->set_value(config => 'location /v1/ { pd_pass chat; }');
    defined $block->request
        or $block->set_value(request => <<'END');
POST /v1/completions
{"model":"m","prompt":"hello","stream":true}
END
    defined $block->http_config
        or $block->set_value(http_config => 'pd_zone pd:1m; pd_cluster chat { '
            . ($block->cluster // 'worker {{m0}}; worker {{m1}} backup;')
            . "ejection $ejection; }");
});

run_tests();

__DATA__

=== TEST 1: a worker that makes no step: its answers go on elsewhere
--- ejection
stall=2s backoff=100ms
--- worker
m0 gate=token
m1
--- steps
nginx expect attached
nginx expect attached
client request
client expect t0
nginx expect is suspect: it has work and makes no step
nginx expect is ejected: it has work and makes no step
client expect t2
client expect [DONE]
worker m0 expect cancel request=1 attempt=1 reason=REFUSED_ELSEWHERE
client2 request
client2 expect t2
worker m0 lacks request=2 attempt=1 route=DIRECT parts=1 bytes=80
worker m1 expect submit request=1



=== TEST 2: and it is back when a canary has sung
--- worker
m0 gate=token
m1
--- steps
nginx expect attached
nginx expect attached
client request
client expect t0
nginx expect is ejected
client expect t2
worker m0 expect /message [^\n]*request_id: "canary" [^\n]*text: "a"/
worker m0 release
nginx expect is back: its canary sang
client2 request
worker m0 expect submit request=3
worker m0 release
worker m0 release
client2 expect t2



=== TEST 3: a worker that is merely slow
--- ejection
stall=3s
--- worker
m0 delay=700 text=t0_|t1_|t2_|t3_|t4_
m1
--- steps
nginx expect attached
nginx expect attached
client request
client expect t4
client finish
nginx lacks is ejected
nginx lacks is suspect
worker m1 lacks submit



=== TEST 4: the last one is never ejected
--- cluster
worker {{m0}};
--- ejection
stall=2500ms backoff=100ms
--- worker
m0 gate=token
--- steps
client request
client expect t0
nginx expect is suspect: it has work and makes no step
nginx expect is the last one, and stays: it has work and makes no step
nginx lacks is ejected
worker m0 release
worker m0 release
client expect t2
client expect [DONE]



=== TEST 5: faults in a row
--- ejection
faults=2 backoff=1h
--- worker
m0 fail=INTERNAL
m1
--- steps
nginx expect attached
nginx expect attached
client request
client expect [DONE]
nginx lacks is ejected
client2 request
client2 expect [DONE]
nginx expect is ejected: too many requests in a row failed with it
client3 request
client3 expect [DONE]
worker m1 expect request=3 attempt=1
--- no_worker_log
m0 submit request=3



=== TEST 6: an ejection outlives a reload
--- workers: 1
--- ejection
faults=1 backoff=1h
--- worker
m0 fail=INTERNAL
m1
--- steps
nginx expect attached
nginx expect attached
client request
client expect [DONE]
nginx expect is ejected
nginx reload
worker m0 expect generation=2
worker m1 expect generation=2
client2 request
client2 expect [DONE]
--- worker_log
m1 submit request=1 attempt=2
m1 submit request=1 attempt=1



=== TEST 7: a death counts, once, and each in turn
--- workers: 2
--- ejection
faults=2 backoff=1h
--- worker
m0 die=third
m1
--- steps
worker m0 expect attach
worker m0 expect attach
worker m1 expect attach
worker m1 expect attach
sleep 0.2
client request
client expect [DONE]
nginx lacks is ejected
worker m0 start
worker m0 expect attach
worker m0 expect attach
nginx expect is back: its canary sang
client2 request
client2 expect [DONE]
nginx expect is ejected: too many requests in a row failed with it



=== TEST 8: a pair whose hand-offs fail is left out, its workers are not
--- cluster
worker {{p0}}; worker {{d0}}; worker {{d1}} backup;
--- ejection
backoff=1h
--- worker
p0 role=prefill
d0 role=decode fail=TICKET
d1 role=decode
--- steps
nginx expect attached
nginx expect attached
nginx expect attached
client request
client expect [DONE]
nginx lacks is left out
client2 request
client2 expect [DONE]
nginx expect is left out: hand-offs between them fail
client3 request
client3 expect [DONE]
worker d1 expect request=3 attempt=1
nginx lacks is ejected
--- no_worker_log
d0 submit request=3



=== TEST 9: the last pair is not left out
--- cluster
worker {{p0}}; worker {{d0}};
--- worker
p0 role=prefill
d0 role=decode refuse=TICKET:1 text=a|b|c|d|e|f
--- steps
nginx expect attached
nginx expect attached
client request
client expect [DONE]
nginx lacks is left out



=== TEST 10: the pair is tried again
--- cluster
worker {{p0}}; worker {{d0}}; worker {{d1}} backup;
--- ejection
backoff=100ms
--- worker
p0 role=prefill
d0 role=decode fail=TICKET
d1 role=decode
--- steps
nginx expect attached
nginx expect attached
nginx expect attached
client request
client expect [DONE]
client2 request
client2 expect [DONE]
nginx expect is left out
sleep 0.2
client3 request
client3 expect [DONE]
nginx expect is left out
worker d0 expect submit request=3



=== TEST 11: parameters that cannot be
--- ejection
stall=1ms
--- worker
m0
m1
--- must_die
--- error_log
invalid parameter "stall=1ms" in "ejection"



=== TEST 12: an ejection outlives a restart in the state file
--- workers: 1
--- http_config
pd_zone pd:1m state={{root}}/pd.state;
pd_cluster chat {
    worker {{m0}}; worker {{m1}} backup; ejection faults=1 backoff=1m;
}
--- worker
m0 fail=INTERNAL
m1
--- steps
nginx expect attached
nginx expect attached
client request
client expect [DONE]
nginx expect is ejected
nginx restart
worker m0 expect detach
worker m0 expect attach
worker m1 expect detach
worker m1 expect attach
client2 request
client2 expect [DONE]
--- worker_log
m1 submit request=1 attempt=2
m1 submit request=1 attempt=1



=== TEST 13: one given twice
--- ejection
faults=1 faults=2
--- worker
m0
m1
--- must_die
--- error_log
invalid parameter "faults=2" in "ejection"



=== TEST 14: who starts again gets a canary first, at once, and then is used
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{p0}}; worker {{d0}}; worker {{d1}} backup; }
--- worker
p0 role=prefill
d0 role=decode
d1 role=decode
--- steps
nginx expect attached
nginx expect attached
nginx expect attached
worker d0 kill
nginx expect lost worker
worker d0 start role=decode gate=placed
worker d0 expect /message .* request_id: "canary"/
client request
client expect [DONE]
worker d1 expect submit request=2
worker d0 release
nginx expect is back: its canary sang
client2 request
worker d0 expect submit request=3
worker d0 release
client2 expect [DONE]



=== TEST 15: one that dies of its canary stays out, a bit longer each time
--- ejection
backoff=1h
--- worker
m0
m1
--- steps
nginx expect attached
nginx expect attached
worker m0 kill
nginx expect lost worker
worker m0 start die=placed
nginx expect stays out: its canary has not sung
worker m0 start die=placed
nginx expect stays out: its canary has not sung
worker m0 start
nginx expect attached
client request
client expect [DONE]
worker m1 expect submit
worker m0 lacks "hello"



=== TEST 16: a new process is not what the old one was
--- ejection
faults=1 backoff=1h
--- worker
m0 fail=INTERNAL
m1
--- steps
nginx expect attached
nginx expect attached
client request
client expect [DONE]
nginx expect is ejected
worker m0 kill
nginx expect lost worker
worker m0 start delay=1
nginx expect is back: its canary sang
client2 request
worker m0 expect submit request=3
client2 expect [DONE]



=== TEST 17: the last one starts again: there is nobody to wait for
--- cluster
worker {{m0}};
--- worker
m0
--- steps
nginx expect attached
worker m0 kill
nginx expect lost worker
client request
worker m0 start
client expect [DONE]
worker m0 lacks canary



=== TEST 18: who becomes the last while it is out is tried each second
--- ejection
faults=1 backoff=1h
--- worker
m0 fail=INTERNAL every=1
m1
--- steps
nginx expect attached
nginx expect attached
client request
client expect [DONE]
nginx expect is ejected
worker m1 kill
nginx expect lost worker
nginx expect stays out: its canary has not sung
nginx expect stays out: its canary has not sung



=== TEST 19: a process that leaves does not keep the others from trying
--- workers: 1
--- ejection
faults=1 backoff=2s
--- worker
m0 fail=INTERNAL every=2
m1 gate=finish
--- steps
nginx expect attached
nginx expect attached
client request
client expect [DONE]
client2 request
worker m1 expect submit
nginx expect is ejected
nginx reload
nginx expect is back: its canary sang
worker m1 lacks detach
worker m1 release
client2 expect [DONE]



=== TEST 20: who fails each tenth answer among good ones
--- cluster
policy round_robin; worker {{m0}}; worker {{m1}};
--- ejection
backoff=1h
--- worker
m0 fail=INTERNAL every=10
m1
--- steps
nginx expect attached
nginx expect attached
nginx ask 300 200
nginx expect /worker .* is ejected: \d+ of \d+ requests failed with it, and 0 of \d+ with the others/
nginx lacks in a row
nginx ask 20 200
worker m0 lacks /submit request=3(0[1-9]|1\d) /



=== TEST 21: its canary sings, and it is out for longer if it fails again
--- cluster
policy round_robin; worker {{m0}}; worker {{m1}};
--- ejection
backoff=100ms answers=20
--- worker
m0 fail=INTERNAL every=2
m1
--- config
location /v1/ { pd_pass chat; }
location = /metrics { pd_metrics; }
--- request_client_metrics
GET /metrics
--- steps
nginx expect attached
nginx expect attached
nginx ask 60 200
nginx expect is ejected
nginx expect is back: its canary sang
sleep 8.1
nginx ask 60 200
nginx expect is ejected
client_metrics request
client_metrics expect /pd_cluster_worker_ejections\{.*\} 2/



=== TEST 22: where all fail each tenth, none is worse
--- cluster
policy round_robin; worker {{m0}}; worker {{m1}}; worker {{m2}};
--- worker
m0 fail=INTERNAL every=10
m1 fail=INTERNAL every=10
m2 fail=INTERNAL every=10
--- steps
nginx expect attached
nginx expect attached
nginx expect attached
nginx ask 300 200
nginx lacks is ejected
nginx lacks is the last one



=== TEST 23: a decode worker that fails each tenth: it goes, and no prefill worker
--- cluster
policy round_robin; worker {{p0}}; worker {{p1}}; worker {{d0}}; worker {{d1}};
--- ejection
backoff=1h
--- worker
p0 role=prefill
p1 role=prefill
d0 role=decode fail=INTERNAL every=10
d1 role=decode
--- steps
nginx expect attached
nginx expect attached
nginx expect attached
nginx expect attached
nginx ask 300 200
nginx expect is ejected
nginx ask 20 200
worker d0 lacks /submit request=3(0[1-9]|1\d) /
nginx lacks is the last one



=== TEST 24: how much worse, of how many
--- ejection
excess=101%
--- worker
m0
m1
--- must_die
--- error_log
invalid parameter "excess=101%" in "ejection"



=== TEST 25: the pair's link is up again: that is known sooner than by trying
--- cluster
worker {{p0}}; worker {{d0}}; worker {{d1}} backup;
--- ejection
backoff=1h
--- worker
p0 role=prefill
d0 role=decode fail=TICKET links=p0:up|p1:down/p0:down/p0:up|p1:up
d1 role=decode
--- steps
nginx expect attached
nginx expect attached
nginx expect attached
client request
client expect [DONE]
client2 request
client2 expect [DONE]
nginx expect is left out: hand-offs between them fail
sleep 1.2
nginx lacks is tried again
worker d0 release
sleep 1.2
nginx lacks is tried again
client3 request
client3 expect [DONE]
worker d0 lacks submit request=3
worker d0 release
nginx expect is tried again: the link between them is up
client4 request
worker d0 expect submit request=4



=== TEST 26: who starts again is in use within two seconds, its canary through
--- more_headers_client2
X-Request-Id: again
--- workers: 1
--- cluster
worker {{p0}}; worker {{d0}}; worker {{d1}} backup;
--- worker
p0 role=prefill
d0 role=decode
d1 role=decode
--- steps
nginx expect attached
nginx expect attached
nginx expect attached
worker d0 kill
nginx expect lost worker
client request
client expect [DONE]
worker d1 expect submit
sleep 2
worker d0 start role=decode
worker d0 expect request_id: "canary"
nginx expect is back: its canary sang
client2 request
client2 expect [DONE]
worker d0 expect request_id: "again"
nginx healed_within 2
