# What another worker has of a prompt: asked for, handed to the prefill worker,
# and done without where anything comes between.

use Test::Nginx::Socket 'no_plan';

# the first turn of a chat, and the second, whose beginning is the first one's
# prompt and answer: 280 bytes and 600 of some 900
my $answer = CORE::join '', map { chr(97 + $_) x 60 } 0 .. 9;
my @first = ('system ' x 40, 'a question');

sub chat {
    my (@texts) = @_;

    my @roles = ('system', map { ('user', 'assistant') } @texts);
    my $messages = join ',', map {
        sprintf '{"role":"%s","content":"%s"}', shift(@roles), $_ } @texts;

    return "POST /v1/chat/completions\n"
           . qq({"model":"m","messages":[$messages],"max_tokens":16});
}

# every worker but those that say otherwise answers so, and knows OFFER
sub worker {
    my ($line) = @_;

    my $text = CORE::join '|', map { chr(97 + $_) x 60 } 0 .. 9;

    $line .= " text=$text" unless $line =~ /text=/;
    $line .= ' offers=160' unless $line =~ /offers=|role=prefill/;

    return $line =~ s/ offers=never//r;
}

add_block_preprocessor(sub {
    my ($block) = @_;

    my $options = $block->cluster // 'borrow_threshold 100 timeout=60s;';
    my $lines = $block->lines // 'worker {{p0}}; worker {{d0}};';

    chomp($options, $lines);
    $block->set_value(http_config => "pd_zone pd:1m;\n"
                      . "pd_cluster chat { $lines $options }\n");
    $block->set_value(config => <<'END');
        location /v1/ {
            pd_pass chat;
            add_header X-Borrowed "$pd_borrowed_tokens/$pd_borrowed_from/$pd_cached_tokens";
        }
        location = /metrics { pd_metrics; }
END
    $block->set_value(worker => CORE::join '', map { worker($_) . "\n" }
                      split /\n/, $block->worker);
    $block->set_value(request_client1 => main::chat(@first));
    $block->set_value(request => main::chat(@first, $answer, 'and then'));
    $block->set_value(request_client2 => main::chat(@first, $answer, 'or else'));
    $block->set_value(request_client4 => main::chat('another one altogether'));
    for my $name ('A' .. 'D') {
        my @chat = ("$name " . $first[0], $first[1]);

        $block->set_value("request_client${name}1" => main::chat(@chat));
        $block->set_value("request_client${name}2"
                          => main::chat(@chat, $answer, 'and then'));
    }
    $block->set_value(request_client9 => "GET /metrics\n");
});

run_tests();

__DATA__

=== TEST 1: the second turn takes what the decode worker has of it
--- worker
p0 role=prefill cached=48 borrows=112
d0 role=decode
--- steps
client1 request
client1 expect jjjj
client request
client expect jjjj
client finish
worker d0 expect submit request=2 attempt=1 route=OFFER
worker p0 expect /submit request=2 attempt=2 route=PREFILL .*ticket=d0\/1/
worker d0 expect cancel request=2 attempt=1 reason=FINISHED_ELSEWHERE
worker d0 expect /submit request=2 attempt=2 route=DECODE .*ticket=p0\/2/
worker d0 lacks cancel request=2 attempt=2
client9 request
client9 expect /pd_borrows_total\{cluster="chat",result="borrowed"\} 1\n.*result="computed"\} 0\n.*pd_borrowed_tokens_total\{cluster="chat"\} 112\n/
--- response_headers_like
X-Borrowed: 112/127.0.0.1:\d+/160
--- worker_log
message .*ticket \{.*ticket_wait_ms: [1-9]\d*



=== TEST 2: a first turn, and one that goes straight to decode, ask nobody
--- cluster: borrow_threshold 1; direct_threshold 200;
--- worker
p0 role=prefill
d0 role=decode
--- steps
client1 request
client1 expect jjjj
client request
client expect jjjj
client finish
worker d0 expect submit request=2 attempt=1 route=DIRECT
--- no_worker_log
route=OFFER
--- response_headers
X-Borrowed: 0//0



=== TEST 3: the one that has it, and another one that goes on
--- lines: worker {{p0}}; worker {{d0}}; worker {{d1}};
--- cluster: borrow_threshold 100 timeout=60s; policy round_robin;
--- worker
p0 role=prefill borrows=160
d0 role=decode
d1 role=decode
--- steps
nginx expect attached
nginx expect attached
nginx expect attached
client1 request
client1 expect jjjj
worker d0 expect submit request=1 attempt=1 route=DECODE
client request
client expect jjjj
client finish
worker d0 expect submit request=2 attempt=1 route=OFFER
worker p0 expect /submit request=2 attempt=2 route=PREFILL .*ticket=d0/
worker d1 expect submit request=2 attempt=2 route=DECODE
worker d0 expect cancel request=2 attempt=1
--- response_headers_like
X-Borrowed: 160/127.0.0.1:\d+/160



=== TEST 4: nothing is there any more
--- worker
p0 role=prefill
d0 role=decode offers=0 message=all_is_evicted
--- steps
client1 request
client1 expect jjjj
client request
client expect jjjj
client finish
worker d0 expect submit request=2 attempt=1 route=OFFER
worker p0 expect submit request=2 attempt=2 route=PREFILL
worker p0 lacks ticket=
worker d0 expect submit request=2 attempt=2 route=DECODE
worker d0 lacks cancel
nginx expect /borrows nothing from worker "127\.0\.0\.1:\d+": all is evicted/
client9 request
client9 expect /pd_borrows_total\{cluster="chat",result="borrowed"\} 0\n.*result="computed"\} 1\n/
--- response_headers
X-Borrowed: 0//0



=== TEST 5: no answer in time, and then one
--- cluster: borrow_threshold 100 timeout=50ms;
--- worker
p0 role=prefill
d0 role=decode gate=offer
--- steps
client1 request
client1 expect jjjj
client request
client expect jjjj
client finish
worker d0 expect submit request=2 attempt=1 route=OFFER
worker p0 expect submit request=2 attempt=2 route=PREFILL
worker p0 lacks ticket=
worker d0 expect cancel request=2 attempt=1 reason=REFUSED_ELSEWHERE
worker d0 expect submit request=2 attempt=2 route=DECODE
worker d0 release
nginx expect did not answer in time



=== TEST 6: an answer after its time: nobody knows of it
--- cluster: borrow_threshold 100 timeout=50ms;
--- worker
p0 role=prefill gate=placed
d0 role=decode gate=offer
--- steps
client1 request
worker p0 expect submit
worker p0 release
client1 expect jjjj
client request
worker d0 expect submit request=2 attempt=1 route=OFFER
worker p0 expect submit request=2 attempt=2 route=PREFILL
worker d0 release
worker p0 release
client expect jjjj
client finish
worker p0 lacks ticket=



=== TEST 7: it dies while it is asked: no death of the request's
--- lines: worker {{p0}}; worker {{d0}}; worker {{d1}} backup;
--- worker
p0 role=prefill
d0 role=decode die=offer
d1 role=decode
--- steps
nginx expect attached
nginx expect attached
nginx expect attached
client1 request
client1 expect jjjj
client request
nginx expect lost worker
nginx expect borrows nothing
client expect jjjj
client finish
worker p0 expect submit request=2 attempt=2 route=PREFILL



=== TEST 8: what is no ticket goes nowhere
--- lines: worker {{p0}}; worker {{d0}};
--- worker
p0 role=prefill
d0 role=decode offer_ticket=bad
--- steps
client1 request
client1 expect jjjj
client request
client expect jjjj
client finish
worker p0 expect submit request=2 attempt=2 route=PREFILL
worker p0 lacks ticket=
worker d0 expect cancel request=2 attempt=1 reason=REFUSED_ELSEWHERE
nginx expect it has sent no valid ticket



=== TEST 9: nor what is none at all
--- worker
p0 role=prefill
d0 role=decode offer_ticket=none
--- steps
client1 request
client1 expect jjjj
client request
client expect jjjj
client finish
worker p0 expect submit request=2 attempt=2 route=PREFILL
worker p0 lacks ticket=
nginx expect it has sent no valid ticket



=== TEST 10: nor what is too long
--- worker
p0 role=prefill
d0 role=decode offer_ticket=long
--- steps
client1 request
client1 expect jjjj
client request
client expect jjjj
client finish
worker p0 expect submit request=2 attempt=2 route=PREFILL
worker p0 lacks ticket=
nginx expect it has sent no valid ticket



=== TEST 11: the way between them is lost: after two faults it is let be, until it is up
--- cluster: borrow_threshold 100 timeout=60s; ejection backoff=60s;
--- worker
p0 role=prefill borrow_failed=the_link_is_lost links=d0:up/d0:down/d0:up
d0 role=decode
--- steps
clientA1 request
clientA1 expect jjjj
clientA2 request
clientA2 expect jjjj
worker d0 expect submit request=2 attempt=1 route=OFFER
nginx expect /borrows nothing from worker "127\.0\.0\.1:\d+": the link is lost/
clientB1 request
clientB1 expect jjjj
clientB2 request
clientB2 expect jjjj
worker d0 expect submit request=4 attempt=1 route=OFFER
nginx expect is left out
worker p0 release
clientC1 request
clientC1 expect jjjj
clientC2 request
clientC2 expect jjjj
worker d0 expect submit request=6 attempt=1 route=DECODE
worker p0 release
clientD1 request
clientD1 expect jjjj
nginx expect is tried again
clientD2 request
clientD2 expect jjjj
worker d0 expect submit request=8 attempt=1 route=OFFER



=== TEST 12: the client leaves while it is asked
--- worker
p0 role=prefill
d0 role=decode gate=offer
--- steps
client1 request
client1 expect jjjj
client2 request
worker d0 expect submit request=2 attempt=1 route=OFFER
client2 close
worker d0 expect cancel request=2 attempt=1 reason=CLIENT_GONE
worker d0 release
worker p0 lacks request=2



=== TEST 13: the client leaves while P reads
--- worker
p0 role=prefill gate=placed
d0 role=decode
--- steps
client1 request
worker p0 expect submit
worker p0 release
client1 expect jjjj
client2 request
worker p0 expect submit request=2 attempt=2 route=PREFILL
client2 close
worker d0 expect cancel request=2 attempt=1 reason=CLIENT_GONE
worker p0 expect cancel request=2 attempt=2 reason=CLIENT_GONE



=== TEST 14: P dies while it reads: another P begins with a ticket of its own
--- lines: worker {{p0}}; worker {{p1}} backup; worker {{d0}};
--- worker
p0 role=prefill gate=placed
p1 role=prefill borrows=160
d0 role=decode
--- steps
nginx expect attached
nginx expect attached
nginx expect attached
client1 request
worker p0 expect submit
worker p0 release
client1 expect jjjj
client request
worker p0 expect /submit request=2 attempt=2 route=PREFILL .*ticket=d0\/1/
worker p0 kill
client expect jjjj
client finish
worker d0 expect cancel request=2 attempt=1 reason=REFUSED_ELSEWHERE
worker d0 expect submit request=2 attempt=3 route=OFFER
worker p1 expect /submit request=2 attempt=4 route=PREFILL .*ticket=d0\/2/
worker d0 expect submit request=2 attempt=4 route=DECODE
--- response_headers_like
X-Borrowed: 160/.*



=== TEST 15: P is gone before it is asked
--- lines: worker {{p0}}; worker {{p1}} backup; worker {{d0}};
--- worker
p0 role=prefill
p1 role=prefill
d0 role=decode gate=offer
--- steps
nginx expect attached
nginx expect attached
nginx expect attached
client1 request
client1 expect jjjj
client request
worker d0 expect submit request=2 attempt=1 route=OFFER
worker p0 kill
nginx expect lost worker
worker d0 release
worker d0 expect cancel request=2 attempt=1
worker d0 expect route=OFFER
worker d0 release
client expect jjjj
client finish
worker p1 expect route=PREFILL



=== TEST 16: the owner dies when P has its ticket: P will find out
--- lines: worker {{p0}}; worker {{d0}}; worker {{d1}} backup;
--- worker
p0 role=prefill gate=placed borrow_failed=the_link_is_lost
d0 role=decode
d1 role=decode
--- steps
nginx expect attached
nginx expect attached
nginx expect attached
client1 request
worker p0 expect submit
worker p0 release
client1 expect jjjj
client request
worker p0 expect /submit request=2 attempt=2 route=PREFILL .*ticket=d0/
worker d0 kill
nginx expect lost worker
worker p0 release
nginx expect the link is lost
worker p0 expect submit request=2 attempt=3 route=PREFILL
worker p0 release
client expect jjjj
client finish
worker d1 expect submit request=2 attempt=3 route=DECODE
--- response_headers
X-Borrowed: 0//0



=== TEST 17: off
--- cluster: borrow_threshold off;
--- worker
p0 role=prefill
d0 role=decode
--- steps
client1 request
client1 expect jjjj
client request
client expect jjjj
client finish
--- no_worker_log
route=OFFER



=== TEST 18: too little to be worth it
--- cluster: borrow_threshold 1000;
--- worker
p0 role=prefill
d0 role=decode
--- steps
client1 request
client1 expect jjjj
client request
client expect jjjj
client finish
--- no_worker_log
route=OFFER



=== TEST 19: a worker of an earlier protocol, which would take it for DIRECT
--- worker
p0 role=prefill
d0 role=decode offers=never
--- steps
client1 request
client1 expect jjjj
client request
client expect jjjj
client finish
--- no_worker_log
route=OFFER



=== TEST 20: auto: what takes long to compute
--- cluster: borrow_threshold auto timeout=60s;
--- worker
p0 role=prefill token_us=1000
d0 role=decode step_us=20000 report=50
--- steps
worker p0 expect heartbeat
client1 request
client1 expect jjjj
client request
client expect jjjj
client finish
--- worker_log
d0 submit request=2 attempt=1 route=OFFER



=== TEST 21: auto: and not what takes longer to ask for
--- cluster: borrow_threshold auto timeout=60s;
--- worker
p0 role=prefill token_us=1000
d0 role=decode step_us=200000 report=50
--- steps
worker p0 expect heartbeat
client1 request
client1 expect jjjj
client request
client expect jjjj
client finish
--- no_worker_log
route=OFFER



=== TEST 22: nginx reloads meanwhile
--- workers: 1
--- worker
p0 role=prefill borrows=160
d0 role=decode gate=offer
--- steps
client1 request
client1 expect jjjj
client request
worker d0 expect submit request=2 attempt=1 route=OFFER
nginx reload
nginx expect attached
worker d0 release
client expect jjjj
client finish
worker p0 expect /submit request=2 attempt=2 route=PREFILL .*ticket=d0/
--- response_headers_like
X-Borrowed: 160/.*



=== TEST 23: another prefill worker may have it
--- lines: worker {{p0}}; worker {{p1}}; worker {{d0}};
--- cluster: borrow_threshold 50 timeout=60s; policy round_robin;
--- worker
p0 role=prefill offers=64 text=other
p1 role=prefill borrows=64 text=other
d0 role=decode offers=never text=other
--- steps
nginx expect attached
nginx expect attached
nginx expect attached
client1 request
client1 expect other
worker p0 expect submit request=1
client request
client expect other
client finish
worker p0 expect submit request=2 attempt=1 route=OFFER
worker p1 expect /submit request=2 attempt=2 route=PREFILL .*ticket=p0\/2/
--- response_headers_like
X-Borrowed: 64/.*



=== TEST 24: who had nothing of it is not asked again
--- lines: worker {{p0}}; worker {{p1}}; worker {{d0}}; worker {{d1}};
--- cluster: borrow_threshold 100 timeout=60s; policy round_robin;
--- worker
p0 role=prefill
p1 role=prefill
d0 role=decode offers=0
d1 role=decode offers=never
--- steps
nginx expect attached
nginx expect attached
nginx expect attached
nginx expect attached
client1 request
client1 expect jjjj
worker d0 expect submit request=1 attempt=1 route=DECODE
client request
client expect jjjj
client finish
worker d0 expect submit request=2 attempt=1 route=OFFER
worker d1 expect submit request=2 attempt=2 route=DECODE
client2 request
client2 expect jjjj
worker p0 expect submit request=3 attempt=1 route=PREFILL
worker d0 expect submit request=3 attempt=1 route=DECODE
