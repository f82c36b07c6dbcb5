# A request's story in the access log.

use Test::Nginx::Socket 'no_plan';

add_block_preprocessor(sub {
    my ($block) = @_;

    $block->set_value(http_config => 'pd_zone pd:1m; pd_cluster chat { '
        . ($block->cluster // 'worker {{p}} role=prefill;
           worker {{d}} role=decode; direct_threshold off;') . ' }
        log_format story "' . ($block->format =~ s/\n//gr) . '";
        access_log {{root}}/logs/error.log story;');
    defined $block->worker
        or $block->set_value(worker => "p role=prefill " . ($block->p // '')
                             . "\nd role=decode " . ($block->d // '') . "\n");
    defined $block->config
        or $block->set_value(config => 'location /v1/ { pd_pass chat; }');
    defined $block->request
        or $block->set_value(request => "POST /v1/completions\n"
            . '{"model":"m","prompt":"hi","stream":true}');
});

run_tests();

__DATA__

=== TEST 1: who served it, and what it cost
--- format
story id=$pd_request_id model=$pd_model route=$pd_route
 p=$pd_prefill_addr d=$pd_decode_addr prompt=$pd_prompt_tokens
 cached=$pd_cached_tokens out=$pd_completion_tokens why=$pd_finish_reason
 failovers=$pd_failovers error=$pd_error kv=$pd_kv_bytes by=$pd_kv_transport.
--- p
prompt=20 cached=16
--- d
prompt=20 cached=16
--- more_headers
X-Request-Id: r1
--- error_log eval
qr/story id=r1 model=m route=split p=127\.0\.0\.1:\d+ d=127\.0\.0\.1:\d+ prompt=20 cached=16 out=3 why=stop failovers=0 error=- kv=4096 by=sim\./



=== TEST 2: when
--- format
story queue=$pd_queue_time prefill=$pd_prefill_time kv=$pd_kv_time
 wait=$pd_kv_wait_time wire=$pd_kv_wire_time chunks=$pd_kv_chunks
 ttft=$pd_ttft second=$pd_second_token_time tpot=$pd_tpot.
--- d
delay=5
--- error_log eval
my $t = qr/0\.\d{6}/;
qr/story queue=$t prefill=0\.002000 kv=0\.006000 wait=0\.004000 wire=0\.005000 chunks=3 ttft=$t second=$t tpot=$t\./



=== TEST 3: nginx's own names for it
--- d
delay=5
--- format
story addr=$upstream_addr status=$upstream_status sent=$upstream_bytes_sent
 first=$upstream_header_time time=$upstream_response_time.
--- error_log eval
my $t = qr/0\.\d{3}/;
qr/story addr=127\.0\.0\.1:\d+, 127\.0\.0\.1:\d+ status=200, 200 sent=\d+, \d+ first=$t, $t time=$t, $t\./



=== TEST 4: one worker for both
--- cluster
worker {{m}};
--- worker
m
--- format
story route=$pd_route p=$pd_prefill_addr d=$pd_decode_addr kv=$pd_kv_time
 addr=$upstream_addr.
--- error_log eval
qr/story route=direct p=- d=127\.0\.0\.1:\d+ kv=- addr=127\.0\.0\.1:\d+\./



=== TEST 5: a request that never came so far
--- format
story id=$pd_request_id model=$pd_model route=$pd_route d=$pd_decode_addr
 ttft=$pd_ttft tpot=$pd_tpot out=$pd_completion_tokens why=$pd_finish_reason
 error=$pd_error addr=$upstream_addr.
--- request
POST /v1/completions
{"model":"m","prompt":""}
--- error_code: 400
--- error_log eval
qr/story id=[0-9a-f]{32} model=m route=- d=- ttft=- tpot=- out=- why=- error=invalid_value addr=-\./



=== TEST 6: a request that failed
--- format
story d=$pd_decode_addr why=$pd_finish_reason error=$pd_error.
--- p
refuse=INTERNAL
--- error_code: 500
--- error_log
story d=- why=- error=internal_error.



=== TEST 7: a client that left
--- format
story status=$status p=$pd_prefill_addr ttft=$pd_ttft why=$pd_finish_reason.
--- p
gate=placed
--- steps
client request
worker p expect submit
client close
nginx expect /story status=499 p=127\.0\.0\.1:\d+ ttft=- why=-\./



=== TEST 8: all the prompts of a list
--- cluster
worker {{m}};
--- worker
m prompt=7 cached=3
--- format
story prompt=$pd_prompt_tokens cached=$pd_cached_tokens
 out=$pd_completion_tokens.
--- request
POST /v1/completions
{"model":"m","prompt":["a","b"]}
--- error_log
story prompt=14 cached=6 out=6.



=== TEST 8b: a prompt counts once, however many answers it has
--- cluster
worker {{m}};
--- worker
m prompt=7 cached=3
--- format
story prompt=$pd_prompt_tokens cached=$pd_cached_tokens
 out=$pd_completion_tokens.
--- request
POST /v1/completions
{"model":"m","prompt":["a","b"],"n":2}
--- error_log
story prompt=14 cached=6 out=12.



=== TEST 9: other locations have no story, and an id only where it is asked for
--- config
location /v1/ { pd_pass chat; }
location /other { return 200 "[$pd_request_id$pd_route$pd_ttft$pd_kv_bytes]"; }
--- format
story id=$pd_request_id.
--- request
GET /other
--- response_body chomp
[]
--- error_log
story id=-.



=== TEST 10: an access rule may ask for the id
--- config
location /v1/ { set $early $pd_request_id; pd_pass chat;
                add_header X-Early $early; }
--- format
story.
--- more_headers
X-Request-Id: r1
--- response_headers
X-Early: r1
X-Request-Id: r1



=== TEST 20: six spans that add up to the request's time
--- format
story $pd_receive_time+$pd_queue_time+$pd_place_time+$pd_first_time+$pd_answer_time+$pd_end_time=$request_time.
--- p
gate=placed,first
--- d
delay=30 gate=finish
--- steps
client request
worker p expect submit
sleep 0.05
worker p release
worker d expect submit
sleep 0.03
worker p release
client expect t1
sleep 0.03
worker d release
client expect t2
client finish
--- error_log eval
qr/story (0\.\d{6})\+(0\.\d{6})\+(0\.0[3-9]\d{4}|0\.[1-9]\d{5})\+(0\.\d{6})\+(0\.0[5-9]\d{4}|0\.[1-9]\d{5})\+(0\.00\d{4})=(\d\.\d{3})\.(?(?{ abs($1 + $2 + $3 + $4 + $5 + $6 - $7) > 0.0011 })(?!))/



=== TEST 21: of one that ends in the queue, two, and what is left
--- cluster
worker {{p}} role=prefill; worker {{d}} role=decode; queue 4 timeout=60ms;
--- worker
d role=decode
--- format
story $pd_receive_time|$pd_queue_time|$pd_place_time|$pd_first_time|$pd_answer_time|$pd_end_time|$request_time.
--- error_code: 503
--- error_log eval
qr/story 0\.\d{6}\|-\|-\|-\|-\|0\.\d{6}\|0\.\d{3}\./
