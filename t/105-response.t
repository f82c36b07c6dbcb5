# Answers in one piece, and the list of models.

use Test::Nginx::Socket 'no_plan';

add_block_preprocessor(sub {
    my ($block) = @_;

    $block->set_value(http_config => 'pd_zone pd:1m; pd_cluster chat { '
        . ($block->cluster // 'worker {{m}};') . ' }');
    defined $block->worker
        or $block->set_value(worker => 'm ' . ($block->options // ''));
    defined $block->more_headers
        or $block->set_value(more_headers => 'X-Request-Id: r1');
    defined $block->config
        or $block->set_value(config => 'location /v1/ { pd_pass chat; }');
    defined $block->request
        or $block->set_value(request => "POST /v1/chat/completions\n"
            . '{"model":"m","messages":[{"role":"user","content":"hi"}]}');
});

run_tests();

__DATA__

=== TEST 1: a chat
--- options
text=He|llo prompt=12 cached=8
--- response_headers
Content-Type: application/json
X-Request-Id: r1
--- response_body_like eval
'^' . quotemeta('{"id":"chatcmpl-r1","object":"chat.completion","created":') . '\d{10}'
    . quotemeta(',"model":"m","choices":[{"index":0,"message":{"role":"assistant",'
    . '"content":"Hello","refusal":null},"logprobs":null,"finish_reason":"stop"}],'
    . '"usage":{"prompt_tokens":12,"completion_tokens":2,"total_tokens":14,'
    . '"prompt_tokens_details":{"cached_tokens":8}}}') . '$'



=== TEST 2: a completion that was cut
--- options
text=a|b|c prompt=3
--- request
POST /v1/completions
{"model":"m","prompt":"x","max_tokens":2}
--- response_body_like eval
'^' . quotemeta('{"id":"cmpl-r1","object":"text_completion","created":') . '\d{10}'
    . quotemeta(',"model":"m","choices":[{"index":0,"text":"ab","logprobs":null,'
    . '"finish_reason":"length"}],"usage":{"prompt_tokens":3,"completion_tokens":2,'
    . '"total_tokens":5,"prompt_tokens_details":{"cached_tokens":0}}}') . '$'



=== TEST 3: the choices of a list come in its order, with the usage of all
--- options
text=a|b prompt=5 cached=2 gate=first
--- request
POST /v1/completions
{"model":"m","prompt":[[1,2],[3],[4]]}
--- steps
client request
worker m expect submit
worker m expect submit
worker m expect submit
worker m release
worker m release
client lacks index
worker m release
client finish
--- response_body_like eval
my $choice = sub { quotemeta "{\"index\":$_[0],\"text\":\"ab\",\"logprobs\":null,\"finish_reason\":\"stop\"}" };
'"choices":\[' . CORE::join(',', map { $choice->($_) } 0 .. 2) . '\],'
    . quotemeta '"usage":{"prompt_tokens":15,"completion_tokens":6,"total_tokens":21,"prompt_tokens_details":{"cached_tokens":6}}'



=== TEST 3b: several answers to each prompt, which counts once
--- options
text=a|b prompt=5 cached=2
--- request
POST /v1/completions
{"model":"m","prompt":["x","y"],"n":2,"seed":7}
--- response_body_like eval
my $choice = sub { quotemeta "{\"index\":$_[0],\"text\":\"ab\",\"logprobs\":null,\"finish_reason\":\"stop\"}" };
'"choices":\[' . CORE::join(',', map { $choice->($_) } 0 .. 3) . '\],'
    . quotemeta '"usage":{"prompt_tokens":10,"completion_tokens":8,"total_tokens":18,"prompt_tokens_details":{"cached_tokens":4}}'
--- worker_log
request_id: "r1-3"
request_id: "r1"



=== TEST 4: an answer of many buffers
--- options eval
'text=' . CORE::join('|', map { "<$_>" . '"' x 3000 } 0 .. 15)
--- response_body_like eval
'"content":"' . CORE::join('', map { "<$_>" . '(?:\\\\"){3000}' } 0 .. 15) . '","refusal"'



=== TEST 5: a failure in the middle has its status
--- config
location /v1/ { pd_pass chat; pd_failover_buffer 0; }
--- options
text=a|b fail=INTERNAL message=out_of_luck
--- error_code: 500
--- response_body chomp
{"error":{"message":"out of luck","type":"server_error","param":null,"code":"internal_error"}}



=== TEST 6: one prompt of a list that fails fails all
--- options
refuse=INVALID:1 gate=finish
--- request
POST /v1/completions
{"model":"m","prompt":["x","y"]}
--- steps
client request
worker m expect /cancel [^\n]* reason=FINISHED_ELSEWHERE/
--- error_code: 400



=== TEST 7: a model's name is quoted
--- options
model=a"b\c
--- request
POST /v1/completions
{"model":"a\"b\\c","prompt":"x"}
--- response_body_like: "model":"a\\"b\\\\c"



=== TEST 8: models: what can be routed to, each once
--- cluster
worker {{a}}; worker {{b}}; worker {{c}} role=prefill; worker {{nobody}};
--- worker
a model=org/small
b model=org/small
c model=org/alone role=prefill
--- request
GET /v1/models
--- steps
nginx expect attached
nginx expect attached
nginx expect attached
client request
--- response_body chomp
{"object":"list","data":[{"id":"org/small","object":"model","created":0,"owned_by":"ngx_pd"}]}



=== TEST 9: models: none
--- cluster
worker {{nobody}};
--- worker
--- request
GET /v1/models
--- response_body chomp
{"object":"list","data":[]}



=== TEST 10: models: one, whose name has a slash
--- options
model=org/small
--- request
GET /v1/models/org/small
--- steps
nginx expect attached
client request
--- response_body chomp
{"id":"org/small","object":"model","created":0,"owned_by":"ngx_pd"}



=== TEST 11: models: one that is not there
--- request
GET /v1/models/other
--- error_code: 404
--- response_body chomp
{"error":{"message":"The model `other` does not exist","type":"invalid_request_error","param":null,"code":"model_not_found"}}



=== TEST 12: models: methods
--- request
POST /v1/models
{}
--- error_code: 405
--- response_headers
Allow: GET, HEAD



=== TEST 13: log probabilities of a chat
--- options
text=a|b
--- request
POST /v1/chat/completions
{"model":"m","logprobs":true,"messages":[{"role":"user","content":"hi"}]}
--- response_body_like eval
quotemeta '"content":"ab","refusal":null},"logprobs":{"content":['
    . '{"token":"a","logprob":-0.250000,"bytes":[97],"top_logprobs":[]},'
    . '{"token":"b","logprob":-0.250000,"bytes":[98],"top_logprobs":[]}],"refusal":null},"finish_reason":"stop"}'



=== TEST 14: log probabilities of a completion; offsets count characters
--- options eval
"text=\xe4\xbd\xa0x|b"
--- request
POST /v1/completions
{"model":"m","logprobs":2,"prompt":"x"}
--- response_body_like eval
quotemeta "\"logprobs\":{\"tokens\":[\"\xe4\xbd\xa0x\",\"b\"],\"token_logprobs\":[-0.250000,-0.250000],"
    . "\"top_logprobs\":[{\"\xe4\xbd\xa0x\":-0.250000,\"alt1\":-1.250000},{\"b\":-0.250000,\"alt1\":-1.250000}],"
    . "\"text_offset\":[0,2]},\"finish_reason\":\"stop\"}"



=== TEST 15: a probability of nothing is a number all the same
--- options
text=a logprob=-inf
--- request
POST /v1/completions
{"model":"m","logprobs":0,"prompt":"x"}
--- response_body_like eval
quotemeta '"token_logprobs":[-9999.000000],'



=== TEST 16: none where none are asked for
--- request
POST /v1/completions
{"model":"m","prompt":"x"}
--- response_body_like: "logprobs":null



=== TEST 17: of a pair, what was cached is what prefill did not compute
--- cluster: worker {{p}}; worker {{d}};
--- worker
p role=prefill prompt=12 cached=4
d role=decode prompt=12 cached=12
--- response_body_like eval
quotemeta '"prompt_tokens_details":{"cached_tokens":4}}}'



=== TEST 18: a worker sends more than fits into a window, and goes on
--- options eval
'text=' . 'x' x 100_000
--- steps eval
"client request\nclient finish\nclient expect \"finish_reason\":\"stop\"\nclient close\n" x 50
