# Which workers a request goes to: by policy, by session, by what they have in
# their caches, by zone; and when it needs no prefill worker.

use Test::Nginx::Socket 'no_plan';

my $two = 'worker {{p0}}; worker {{p1}}; worker {{d0}};';

# a chat of messages by role: system, user, assistant, user ...
sub chat {
    my ($stream, @texts) = @_;

    my @roles = ('system', map { ('user', 'assistant') } @texts);
    my $messages = join ',', map {
        sprintf '{"role":"%s","content":"%s"}', shift(@roles), $_ } @texts;

    return "POST /v1/chat/completions\n"
           . qq({"model":"m","messages":[$messages],"max_tokens":16)
           . ($stream ? ',"stream":true' : '') . "}\n";
}

add_block_preprocessor(sub {
    my ($block) = @_;

    $block->set_value(config => <<'END');
        location /v1/ {
            pd_pass chat;
            add_header X-Route "$pd_route/$pd_route_reason";
        }
END
    defined $block->request
        or $block->set_value(request => <<'END');
POST /v1/completions
{"model":"m","prompt":"hello","stream":true}
END
    if (defined(my $options = $block->cluster)) {
        chomp $options;
        my $workers = $block->lines // $two;
        $block->set_value(http_config => "pd_zone pd:1m;\n"
                          . "pd_cluster chat { $workers $options }\n");
    }
});

run_tests();

__DATA__

=== TEST 1: least_time: what waits, by the time that a token takes
--- cluster:
--- worker
p0 role=prefill busy=100 token_us=1000
p1 role=prefill busy=300 token_us=100
d0 role=decode
--- steps
worker p0 expect heartbeat
worker p1 expect heartbeat
client request
client expect t2
worker p1 expect submit
--- no_worker_log
p0 submit



=== TEST 2: least_load: what waits
--- cluster: policy least_load;
--- worker
p0 role=prefill busy=100 token_us=1000
p1 role=prefill busy=300 token_us=100
d0 role=decode
--- steps
worker p0 expect heartbeat
worker p1 expect heartbeat
client request
client expect t2
worker p0 expect submit
--- no_worker_log
p1 submit



=== TEST 3: round_robin: in turn, by weight, whatever waits
--- lines: worker {{p0}} weight=2; worker {{p1}}; worker {{d0}};
--- cluster: policy round_robin;
--- worker
p0 role=prefill busy=100000
p1 role=prefill
d0 role=decode
--- steps eval
"worker p0 expect heartbeat\nworker p1 expect heartbeat\n"
. CORE::join('', map { "client$_ request\nclient$_ expect t2\n" } 1 .. 6)
. "worker p0 expect /(submit.*){4}/\nworker p1 expect /(submit.*){2}/\n"
. "worker p0 lacks /(submit.*){5}/\n"



=== TEST 4: hash: one key, one worker
--- cluster: policy hash $http_x_key;
--- worker
p0 role=prefill
p1 role=prefill
d0 role=decode
--- more_headers
X-Key: one
--- steps eval
"worker p0 expect heartbeat\nworker p1 expect heartbeat\n"
. CORE::join('', map { "client$_ request\nclient$_ expect t2\n" } 1 .. 4)
--- no_worker_log
(p0 submit[\s\S]*p1 submit|p1 submit[\s\S]*p0 submit)



=== TEST 5: and many keys, all workers
--- cluster: policy hash $request_id;
--- worker
p0 role=prefill
p1 role=prefill
d0 role=decode
--- steps eval
"worker p0 expect heartbeat\nworker p1 expect heartbeat\n"
. CORE::join('', map { "client$_ request\nclient$_ expect t2\n" } 1 .. 20)
--- worker_log
p0 submit
p1 submit



=== TEST 6: sticky: a session stays with its workers
--- cluster: sticky $http_x_session;
--- worker
p0 role=prefill prompt=2000 gate=first report=50
p1 role=prefill busy=500
d0 role=decode
--- more_headers
X-Session: s
--- steps
worker p0 expect heartbeat
worker p1 expect heartbeat
client1 request
client1 expect t2
worker p0 expect submit
sleep 0.2
client2 request
client2 expect t2
worker p0 expect submit
--- no_worker_log
p1 submit



=== TEST 7: and moves when they are gone
--- cluster: sticky $http_x_session;
--- worker
p0 role=prefill
p1 role=prefill busy=500
d0 role=decode
--- more_headers
X-Session: s
--- steps
worker p0 expect heartbeat
worker p1 expect heartbeat
client1 request
client1 expect t2
worker p0 expect submit
worker p0 kill
nginx expect lost worker
client2 request
client2 expect t2
worker p1 expect submit
worker p0 start
nginx expect attached
worker p0 expect heartbeat
client3 request
client3 expect t2
worker p1 expect submit



=== TEST 8: answers to one prompt go to one pair
--- cluster:
--- worker
p0 role=prefill
p1 role=prefill busy=1
d0 role=decode
--- request
POST /v1/completions
{"model":"m","prompt":"hello","stream":true,"n":3}
--- steps
worker p0 expect heartbeat
worker p1 expect heartbeat
client request
client expect t2
worker p0 expect submit
worker p0 expect submit
worker p0 expect submit
--- no_worker_log
p1 submit



=== TEST 9: without a session, the load decides
--- cluster: sticky $http_x_session;
--- worker
p0 role=prefill prompt=2000 gate=first report=50
p1 role=prefill busy=500
d0 role=decode
--- steps
worker p0 expect heartbeat
worker p1 expect heartbeat
client1 request
client1 expect t2
worker p0 expect submit
sleep 0.2
client2 request
client2 expect t2
worker p1 expect submit



=== TEST 10: a prompt that begins like another goes to the same prefill worker
--- cluster:
--- worker
p0 role=prefill
p1 role=prefill
d0 role=decode
--- request_client1 eval: main::chat(1, 'a' x 600, 'one')
--- request_client2 eval: main::chat(1, 'b' x 600, 'two')
--- request_client3 eval: main::chat(1, 'b' x 600, 'three')
--- request_client4 eval: main::chat(1, 'b' x 600, 'four')
--- steps
worker p0 expect heartbeat
worker p1 expect heartbeat
client1 request
client1 expect t2
client2 request
client2 expect t2
client3 request
client3 expect t2
client4 request
client4 expect t2
--- worker_log
submit[^\n]*\n[^\n]*aaaaaaaa[\s\S]*submit[^\n]*\n[^\n]*bbbbbbbb[\s\S]*submit[^\n]*\n[^\n]*bbbbbbbb[\s\S]*submit[^\n]*\n[^\n]*bbbbbbbb
--- no_worker_log
^(p\d) [^\n]*bbbbbbbb[\s\S]*^\1 [^\n]*aaaaaaaa
^(p\d) [^\n]*aaaaaaaa[\s\S]*^\1 [^\n]*bbbbbbbb



=== TEST 11: text that begins like another, likewise
--- cluster:
--- worker
p0 role=prefill
p1 role=prefill
d0 role=decode
--- request_client1 eval: "POST /v1/completions\n" . '{"model":"m","stream":true,"prompt":"' . 'a' x 600 . "\"}\n"
--- request_client2 eval: "POST /v1/completions\n" . '{"model":"m","stream":true,"prompt":"' . 'b' x 600 . "\"}\n"
--- request_client3 eval: "POST /v1/completions\n" . '{"model":"m","stream":true,"prompt":"' . 'b' x 600 . " and more\"}\n"
--- steps
worker p0 expect heartbeat
worker p1 expect heartbeat
client1 request
client1 expect t2
client2 request
client2 expect t2
client3 request
client3 expect t2
--- no_worker_log
^(p\d) [^\n]*bbbbbbbb[\s\S]*^\1 [^\n]*aaaaaaaa
^(p\d) [^\n]*aaaaaaaa[\s\S]*^\1 [^\n]*bbbbbbbb



=== TEST 12: the next turn of a chat finds the answer to the last one in the cache
--- lines: worker {{p0}}; worker {{d0}}; worker {{d1}};
--- cluster: direct_threshold 50;
--- worker eval
my $text = CORE::join '|', map { chr(97 + $_) x 60 } 0 .. 9;
"p0 role=prefill text=$text\nd0 role=decode text=$text\nd1 role=decode text=$text\n"
--- request_client1 eval: main::chat(0, 'system ' x 40, 'a question')
--- request_client2 eval: main::chat(0, 'system ' x 40, 'a question', CORE::join('', map { chr(97 + $_) x 60 } 0 .. 9), 'and')
--- steps
client1 request
client1 expect jjjj
client2 request
client2 expect jjjj
client2 expect /"finish/
--- worker_log
^(d\d) submit [^\n]*route=DECODE[\s\S]*^\1 submit [^\n]*route=DIRECT



=== TEST 13: another answer than the one it got, and the rest is too long
--- lines: worker {{p0}}; worker {{d0}}; worker {{d1}};
--- cluster: direct_threshold 50;
--- worker eval
my $text = CORE::join '|', map { chr(97 + $_) x 60 } 0 .. 9;
"p0 role=prefill text=$text\nd0 role=decode text=$text\nd1 role=decode text=$text\n"
--- request_client1 eval: main::chat(0, 'system ' x 40, 'a question')
--- request_client2 eval: main::chat(0, 'system ' x 40, 'a question', CORE::join('', map { chr(98 + $_) x 60 } 0 .. 9), 'and')
--- steps
client1 request
client1 expect jjjj
client2 request
client2 expect jjjj
client2 expect /"finish/
--- no_worker_log
route=DIRECT



=== TEST 14: below the threshold there is no prefill worker, and the log says why
--- lines: worker {{p0}}; worker {{d0}};
--- cluster: direct_threshold 50;
--- worker
p0 role=prefill
d0 role=decode
--- steps
client request
client expect t2
worker d0 expect /message .*redirect_above: 75/
--- response_headers
X-Route: direct/short prompt
--- no_worker_log
p0 submit



=== TEST 15: a decode worker that finds it too long says so, once
--- lines: worker {{p0}}; worker {{d0}};
--- cluster: direct_threshold 50;
--- worker
p0 role=prefill
d0 role=decode refuse=REDIRECT:1
--- steps
client request
client expect t2
client finish
worker d0 expect route=DIRECT
worker p0 expect route=PREFILL
worker d0 expect route=DECODE
worker d0 lacks route=DIRECT attempt=2
--- response_headers
X-Route: split/redirected



=== TEST 16: bytes per token are learned
--- lines: worker {{p0}}; worker {{d0}};
--- cluster: direct_threshold 150;
--- worker
p0 role=prefill prompt=300
d0 role=decode prompt=300
--- request_client1 eval: "POST /v1/completions\n" . '{"model":"m","stream":true,"prompt":"' . 'a' x 400 . "\"}\n"
--- request_client2 eval: "POST /v1/completions\n" . '{"model":"m","stream":true,"prompt":"' . 'b' x 400 . "\"}\n"
--- steps
client1 request
client1 expect t2
worker d0 expect submit request=1 attempt=1 route=DIRECT
client2 request
client2 expect t2
worker p0 expect submit request=2 attempt=1 route=PREFILL



=== TEST 17: auto: no more than two steps of the answers that run there
--- lines: worker {{p0}}; worker {{d0}};
--- cluster: direct_threshold auto;
--- worker
p0 role=prefill busy=1000 token_us=1000
d0 role=decode token_us=1000 step_us=20000 gate=finish report=50
--- request_client2 eval: "POST /v1/completions\n" . '{"model":"m","stream":true,"prompt":"' . 'a' x 400 . "\"}\n"
--- request_client4 eval: "POST /v1/completions\n" . '{"model":"m","stream":true,"prompt":"' . 'b' x 400 . "\"}\n"
--- steps
worker p0 expect heartbeat
client1 request
client1 expect t1
worker d0 expect submit request=1 attempt=1 route=DIRECT
sleep 0.2
client2 request
worker p0 expect submit request=2 attempt=1 route=PREFILL
client3 request
worker d0 expect submit request=3 attempt=1 route=DIRECT
worker d0 release
worker d0 release
worker d0 release
client1 expect t2
client2 expect t2
client3 expect t2
sleep 0.2
client4 request
worker d0 expect submit request=4 attempt=1 route=DIRECT
worker d0 release
client4 expect t2



=== TEST 18: auto: and no longer than a prefill worker would take
--- lines: worker {{p0}}; worker {{d0}};
--- cluster: direct_threshold auto;
--- worker
p0 role=prefill token_us=100
d0 role=decode token_us=1000
--- request eval: "POST /v1/completions\n" . '{"model":"m","stream":true,"prompt":"' . 'a' x 400 . "\"}\n"
--- steps
worker p0 expect heartbeat
client request
client expect t2
worker p0 expect submit
--- response_headers
X-Route: split/pair



=== TEST 19: a decode worker of the prefill worker's zone comes first
--- lines: worker {{p0}} zone=a; worker {{d0}} zone=b; worker {{d1}} zone=a;
--- cluster:
--- worker
p0 role=prefill
d0 role=decode
d1 role=decode
--- steps eval
"worker d0 expect heartbeat\nworker d1 expect heartbeat\n"
. CORE::join('', map { "client$_ request\nclient$_ expect t2\n" } 1 .. 3)
--- no_worker_log
d0 submit



=== TEST 20: unless it is full
--- lines: worker {{p0}} zone=a; worker {{d0}} zone=b; worker {{d1}} zone=a max_streams=1;
--- cluster:
--- worker
p0 role=prefill
d0 role=decode
d1 role=decode gate=finish
--- steps
worker d0 expect heartbeat
worker d1 expect heartbeat
client1 request
client1 expect t1
worker d1 expect submit
client2 request
client2 expect t2
worker d0 expect submit
worker d1 release
client1 expect t2



=== TEST 21: no such policy
--- cluster: policy random;
--- must_die
--- error_log
invalid policy "random": use "least_time", "least_load", "round_robin" or "hash $variable"



=== TEST 22: a hash of nothing
--- cluster: policy hash;
--- must_die
--- error_log
invalid policy "hash"



=== TEST 23: a variable that does not exist
--- cluster: sticky $no_such_variable;
--- must_die
--- error_log
unknown "no_such_variable" variable
