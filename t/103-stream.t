# Answers as server-sent events: each event when it happens, and what ends them.

use Test::Nginx::Socket 'no_plan';

# The common part of every event, and an event of a chat or a completion.
our $Head = '"id":"chatcmpl-r1","object":"chat.completion.chunk",'
    . '"created":\d+,"model":"m","choices":';
our $Text = '"id":"cmpl-r1","object":"text_completion","created":\d+,'
    . '"model":"m","choices":';

sub chat {
    my ($choice, $rest) = @_;
    return "data: \\{$Head" . quotemeta($choice) . quotemeta($rest // '')
        . "\\}\n\n";
}

sub text {
    my ($choice, $rest) = @_;
    return "data: \\{$Text" . quotemeta($choice) . quotemeta($rest // '')
        . "\\}\n\n";
}

sub delta {
    my ($delta, $finish) = @_;
    return "[{\"index\":0,\"delta\":{$delta},\"logprobs\":null,"
        . '"finish_reason":' . ($finish // 'null') . '}]';
}

sub completion {
    my ($index, $text, $finish) = @_;
    return "[{\"index\":$index,\"text\":\"$text\",\"logprobs\":null,"
        . '"finish_reason":' . ($finish // 'null') . '}]';
}

add_block_preprocessor(sub {
    my ($block) = @_;

    $block->set_value(http_config => 'pd_zone pd:1m;
        pd_cluster chat { worker {{m}}; }' . ($block->http // ''));
    $block->set_value(worker => 'm ' . ($block->options // ''));
    defined $block->more_headers
        or $block->set_value(more_headers => 'X-Request-Id: r1');
    defined $block->config
        or $block->set_value(config => 'location /v1/ { pd_pass chat; }');
    defined $block->request
        or $block->set_value(request => "POST /v1/chat/completions\n"
            . '{"model":"m","stream":true,'
            . '"messages":[{"role":"user","content":"hi"}]}');
});

run_tests();

__DATA__

=== TEST 1: a chat
--- options
text=He|llo
--- response_headers
Content-Type: text/event-stream; charset=utf-8
Cache-Control: no-cache
X-Accel-Buffering: no
Transfer-Encoding: chunked
X-Request-Id: r1
--- response_body_like eval
'^' . main::chat(main::delta('"role":"assistant","content":""'))
    . main::chat(main::delta('"content":"He"'))
    . main::chat(main::delta('"content":"llo"'))
    . main::chat(main::delta('', '"stop"'))
    . 'data: \[DONE\]' . "\n\n\$"



=== TEST 2: usage where it is asked for, and null before
--- options
text=Hi prompt=12 cached=8
--- request
POST /v1/chat/completions
{"model":"m","stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"hi"}]}
--- response_body_like eval
my $null = ',"usage":null';
'^' . main::chat(main::delta('"role":"assistant","content":""'), $null)
    . main::chat(main::delta('"content":"Hi"'), $null)
    . main::chat(main::delta('', '"stop"'), $null)
    . main::chat('[]', ',"usage":{"prompt_tokens":12,"completion_tokens":1,'
        . '"total_tokens":13,"prompt_tokens_details":{"cached_tokens":8}}')
    . 'data: \[DONE\]' . "\n\n\$"



=== TEST 3: a completion
--- options
text=a|b finish=length
--- request
POST /v1/completions
{"model":"m","stream":true,"prompt":"x"}
--- response_body_like eval
'^' . main::text(main::completion(0, 'a'))
    . main::text(main::completion(0, 'b'))
    . main::text(main::completion(0, '', '"length"'))
    . 'data: \[DONE\]' . "\n\n\$"



=== TEST 4: every event goes out when it happens
--- options
text=one|two|three gate=placed,first,token,finish
--- steps
client request
worker m expect submit
client lacks data
worker m release
worker m expect release
sleep 0.05
client lacks data
worker m release
client expect "content":"one"
client lacks two
worker m release
client expect "content":"two"
client lacks three
worker m release
worker m release
client expect "content":"three"
client expect "finish_reason":"stop"
client expect [DONE]



=== TEST 5: quotes, controls and characters of several bytes
--- options eval
"text=\"\\|\xe4\xbd\xa0\xf0\x9f\x98\x80|</a>|\x7f"
--- response_body_like eval
quotemeta('"content":"\\"\\\\"') . '.*' . quotemeta("\"content\":\"\xe4\xbd\xa0\xf0\x9f\x98\x80\"")
    . '.*' . quotemeta('"content":"</a>"') . ".*\"content\":\"\x7f\""



=== TEST 6: a token without text makes no event
--- options
text=|Hi|
--- response_body_like eval
'^' . main::chat(main::delta('"role":"assistant","content":""'))
    . main::chat(main::delta('"content":"Hi"'))
    . main::chat(main::delta('', '"stop"'))
    . 'data: \[DONE\]' . "\n\n\$"



=== TEST 7: an answer without text
--- options
text=
--- response_body_like eval
'^' . main::chat(main::delta('"role":"assistant","content":""'))
    . main::chat(main::delta('', '"stop"'))
    . 'data: \[DONE\]' . "\n\n\$"



=== TEST 8: several tokens of a step are one event
--- options
text=a|b|c|d merge=2
--- response_body_like: "content":"ab".*"content":"cd"



=== TEST 9: the choices of a list, each with its index
--- options
text=a|b gate=finish
--- request
POST /v1/completions
{"model":"m","stream":true,"prompt":["x","y"],"stream_options":{"include_usage":true}}
--- steps
client request
client expect /"index":[01],"text":"a".*"index":[01],"text":"a"/
worker m release
client expect /"index":[01],"text":"","logprobs":null,"finish_reason":"stop"/
client lacks DONE
worker m release
client expect /"index":[01],"text":"","logprobs":null,"finish_reason":"stop"/
client expect /"choices":\[\],"usage":\{"prompt_tokens":\d+,"completion_tokens":4,/
client finish
client expect [DONE]
--- worker_log
request_id: "r1-1"
request_id: "r1"



=== TEST 9b: several answers to a chat, each with its index and its role
--- options
text=a|b prompt=4
--- request
POST /v1/chat/completions
{"model":"m","stream":true,"n":2,"messages":[{"role":"user","content":"hi"}],"stream_options":{"include_usage":true}}
--- response_body_like eval
'(?s)^(?=.*' . quotemeta('{"index":0,"delta":{"role":"assistant","content":""}') . ')(?=.*'
    . quotemeta('{"index":1,"delta":{"role":"assistant","content":""}') . ')(?=.*'
    . quotemeta('{"index":1,"delta":{},"logprobs":null,"finish_reason":"stop"}') . ').*'
    . quotemeta '"usage":{"prompt_tokens":4,"completion_tokens":4,"total_tokens":8,'



=== TEST 10: a failure before the first token has its status
--- options
refuse=INTERNAL message=out_of_luck
--- error_code: 500
--- response_headers
Content-Type: application/json
--- response_body_like: "message":"out of luck"



=== TEST 11: a failure after the first token is the last event
--- config
location /v1/ { pd_pass chat; pd_failover_buffer 0; }
--- options
text=a|b fail=INTERNAL message=out_of_luck
--- response_body_like eval
main::chat(main::delta('"content":"a"')) . quotemeta('data: {"error":{"message":"out of luck",'
    . '"type":"server_error","param":null,"code":"internal_error"}}') . "\n\n\$"
--- error_log
failed after its answer had begun: out of luck



=== TEST 12: a worker that dies after the first token ends it with an error
--- config
location /v1/ { pd_pass chat; pd_failover_buffer 0; }
--- options
text=a|b gate=token
--- steps
client request
client expect "content":"a"
worker m kill
client expect {"error":{"message":
client finish
client lacks DONE



=== TEST 13: one prompt of a list that fails ends all
--- config
location /v1/ { pd_pass chat; pd_failover_buffer 0; }
--- options
text=a|b fail=INTERNAL
--- request
POST /v1/completions
{"model":"m","stream":true,"prompt":["x","y"]}
--- response_body_like eval
'^(?!.*\[DONE\]).*"code":"internal_error"\}\}' . "\n\n\$"



=== TEST 14: no compression may hold an event back
--- http
gzip on; gzip_types *; gzip_min_length 0; gzip_http_version 1.0;
--- more_headers
X-Request-Id: r1
Accept-Encoding: gzip
--- response_headers
Content-Encoding:
--- response_body_like: \[DONE\]



=== TEST 15: keepalive after a stream
--- more_headers
Connection: keep-alive
X-Request-Id: r1
--- response_headers
Connection: keep-alive
--- response_body_like: \[DONE\]



=== TEST 16: the time a request may take
--- config
location /v1/ { pd_timeout 200ms; pd_pass chat; }
--- options
text=a|b gate=token
--- response_body_like eval
main::chat(main::delta('"content":"a"')) . '.*"type":"server_error"'
--- worker_log
cancel .* reason=DEADLINE



=== TEST 17: log probabilities come with their tokens' event
--- options
text=H"i|!
--- request
POST /v1/chat/completions
{"model":"m","stream":true,"logprobs":true,"top_logprobs":2,"messages":[{"role":"user","content":"hi"}]}
--- response_body_like eval
quotemeta('"delta":{"role":"assistant","content":""},"logprobs":null,') . '.*'
    . quotemeta('"delta":{"content":"H\\"i"},"logprobs":{"content":[{"token":"H\\"i",'
        . '"logprob":-0.250000,"bytes":[72,34,105],"top_logprobs":['
        . '{"token":"H\\"i","logprob":-0.250000,"bytes":[72,34,105]},'
        . '{"token":"alt1","logprob":-1.250000,"bytes":[97,108,116,49]}]}],'
        . '"refusal":null},"finish_reason":null') . '.*'
    . quotemeta('"delta":{"content":"!"},"logprobs":{"content":[{"token":"!",') . '.*'
    . quotemeta('"delta":{},"logprobs":null,"finish_reason":"stop"')



=== TEST 18: also where a token has no text of its own
--- options
text=|a merge=2
--- request
POST /v1/completions
{"model":"m","stream":true,"logprobs":0,"prompt":"x"}
--- response_body_like eval
quotemeta '"text":"a","logprobs":{"tokens":["","a"],"token_logprobs":[-0.250000,-0.250000],'
    . '"top_logprobs":[{"":-0.250000},{"a":-0.250000}],"text_offset":[0,0]},"finish_reason":null'



=== TEST 19: those of deltas that gather for a slow client
--- config
location /v1/ { limit_rate 200; pd_pass chat; }
--- options
text=a|b|c
--- request
POST /v1/completions
{"model":"m","stream":true,"logprobs":1,"prompt":"x"}
--- timeout: 20
--- response_body_like eval
quotemeta('"text":"a","logprobs":{"tokens":["a"],') . '.*'
    . quotemeta('"text":"bc","logprobs":{"tokens":["b","c"],"token_logprobs":[-0.250000,-0.250000],'
        . '"top_logprobs":[{"b":-0.250000},{"c":-0.250000}],"text_offset":[1,2]}')



=== TEST 20: events that another filter rewrites, and one that it leaves
--- http
sub_filter_types *; sub_filter_once off; sub_filter '"He"' '"Hello, "';
--- options
text=He|llo
--- response_headers
Transfer-Encoding: chunked
--- response_body_like eval
'^' . main::chat(main::delta('"role":"assistant","content":""'))
    . main::chat(main::delta('"content":"Hello, "'))
    . main::chat(main::delta('"content":"llo"'))
    . main::chat(main::delta('', '"stop"'))
    . 'data: \[DONE\]' . "\n\n\$"



=== TEST 21: events of each length, as long as a buffer and longer
--- options eval
'text=' . CORE::join '|', map { 'x' x $_ } 1, 15, 60 .. 75, 316 .. 332, 800 .. 870, 3000
--- response_body_like eval
'^' . main::chat(main::delta('"role":"assistant","content":""'))
    . CORE::join('', map { main::chat(main::delta('"content":"' . 'x' x $_ . '"')) }
           1, 15, 60 .. 75, 316 .. 332, 800 .. 870, 3000)
    . main::chat(main::delta('', '"stop"'))
    . 'data: \[DONE\]' . "\n\n\$"
