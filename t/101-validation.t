# What a request must be: refusals in the API's shape, bodies in any pieces.
# (Each field's refusal is in t/unit/module/test_openai.c.)

use Test::Nginx::Socket 'no_plan';

our $Chat = '{"model":"m","messages":[{"role":"user","content":"hi"}]';

add_block_preprocessor(sub {
    my ($block) = @_;

    $block->set_value(http_config => 'pd_zone pd:1m;
        pd_cluster chat { worker {{m}}; }' . ($block->http // ''));
    $block->set_value(worker => 'm ' . ($block->options // ''));
    defined $block->config
        or $block->set_value(config => 'location /v1/ { pd_pass chat; }');
});

run_tests();

__DATA__

=== TEST 1: an unknown field is refused by name
--- request eval
"POST /v1/chat/completions\n$::Chat,\"max_token\":5}"
--- error_code: 400
--- response_headers
Content-Type: application/json
--- response_body chomp
{"error":{"message":"Unknown parameter: 'max_token'","type":"invalid_request_error","param":"max_token","code":"unknown_parameter"}}
--- no_worker_log
submit
--- error_log eval
qr/pd: request "[0-9a-f]{32}" refused with 400: Unknown parameter: 'max_token'/



=== TEST 2: a field that is not supported is refused by name
--- request eval
"POST /v1/chat/completions\n$::Chat,\"tools\":[{\"type\":\"function\"}]}"
--- error_code: 400
--- response_body chomp
{"error":{"message":"Unsupported parameter: 'tools[0]' is not supported by this server","type":"invalid_request_error","param":"tools[0]","code":"unsupported_parameter"}}



=== TEST 3: a wrong type is named
--- request eval
"POST /v1/chat/completions\n$::Chat,\"temperature\":\"hot\"}"
--- error_code: 400
--- response_body chomp
{"error":{"message":"Invalid type for 'temperature': expected a number, but got a string","type":"invalid_request_error","param":"temperature","code":"invalid_type"}}



=== TEST 4: a range is named
--- request
POST /v1/completions
{"model":"m","prompt":"x","top_p":1.5}
--- error_code: 400
--- response_body chomp
{"error":{"message":"Invalid 'top_p': expected a value above 0 to 1, but got 1.5","type":"invalid_request_error","param":"top_p","code":"decimal_above_max_value"}}



=== TEST 5: broken JSON with its position
--- request eval
"POST /v1/chat/completions\n{\n  \"model\": \"m\",\n  \"messages\": [}\n}"
--- error_code: 400
--- response_body chomp
{"error":{"message":"The body is not valid JSON: expected a value, at byte 33 (line 3, column 16)","type":"invalid_request_error","param":null,"code":"invalid_json"}}



=== TEST 6: an empty body
--- request
POST /v1/chat/completions
--- error_code: 400
--- response_body chomp
{"error":{"message":"The body is not valid JSON: it ends too early, at byte 0 (line 1, column 1)","type":"invalid_request_error","param":null,"code":"invalid_json"}}



=== TEST 7: invalid UTF-8
--- request eval
"POST /v1/completions\n{\"model\":\"m\",\"prompt\":\"caf\xc3\"}"
--- error_code: 400
--- response_body_like: invalid UTF-8, at byte 27 \(line 1, column 28\)



=== TEST 8: too deep
--- request eval
"POST /v1/chat/completions\n$::Chat,\"metadata\":" . '{"a":' x 64 . "1" . '}' x 64 . "}"
--- error_code: 400
--- response_body_like: nested too deeply, at byte



=== TEST 9: what a field says is quoted in the answer
--- request eval
"POST /v1/chat/completions\n$::Chat,\"\\\"\\\\\\n\xc3\xa9\":1}"
--- error_code: 400
--- response_body eval
qq({"error":{"message":"Unknown parameter: '\\"\\\\\\n\xc3\xa9'","type":"invalid_request_error","param":"\\"\\\\\\n\xc3\xa9","code":"unknown_parameter"}})



=== TEST 10: a body that says it is too large
--- config
location /v1/ { client_max_body_size 1k; pd_pass chat; }
--- raw_request eval
"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1025\r\n\r\n{"
--- error_code: 413
--- response_headers
Content-Type: application/json
--- response_body chomp
{"error":{"message":"The request's body is too large.","type":"invalid_request_error","param":null,"code":"request_too_large"}}



=== TEST 11: a chunked body that grows too large
--- config
location /v1/ { client_max_body_size 1k; pd_pass chat; }
--- raw_request eval
["POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n",
 "200\r\n{\"model\":\"m\",\"prompt\":\"" . "x" x 489 . "\r\n",
 "300\r\n" . "x" x 768 . "\r\n0\r\n\r\n"]
--- error_code: 413
--- response_body_like: "code":"request_too_large"



=== TEST 12: a body just as large as it may be
--- config
location /v1/ { client_max_body_size 1k; pd_pass chat; }
--- request eval
"POST /v1/completions\n{\"model\":\"m\",\"prompt\":\"" . "x" x 999 . "\"}"
--- response_body_like: "finish_reason":"stop"
--- worker_log
submit .* bytes=10\d\d



=== TEST 13: a body in single bytes
--- raw_request eval
my $body = '{"model":"m","prompt":"caf\u00e9 ' . "\xe2\x82\xac" . '"}';
["POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: " . length($body) . "\r\n\r\n",
 split(//, $body)]
--- response_body_like: "finish_reason":"stop"
--- worker_log
text: "caf\\303\\251 \\342\\202\\254"



=== TEST 14: a chunked body
--- raw_request eval
["POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n",
 "8\r\n{\"model\"\r\n", "c\r\n:\"m\",\"prompt\r\n", "7\r\n\":\"ok\"}\r\n0\r\n\r\n"]
--- response_body_like: "finish_reason":"stop"
--- worker_log
text: "ok"



=== TEST 15: a large body arrives whole, in parts of 32 KB
--- config
location /v1/ { client_max_body_size 4m; pd_pass chat; }
--- request eval
"POST /v1/completions\n{\"model\":\"m\",\"prompt\":\"" . "0123456789abcdef\\n" x 100000 . "\"}"
--- response_body_like: "prompt_tokens":425\d\d\d
--- worker_log
submit .* parts=52 bytes=17000\d\d



=== TEST 16: a large body leaves time for others
--- config
location /v1/ { client_max_body_size 16m; pd_pass chat; }
location /other { return 200 ok; }
--- request_client1 eval
"POST /v1/completions\n{\"model\":\"m\",\"prompt\":\"" . "x" x 8000000
--- request_client2
GET /other
--- more_headers
--- steps
client1 request
client2 request
client2 finish
client2 expect ok



=== TEST 17: a client that waits for 100-continue gets it
--- raw_request eval
["POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 27\r\nExpect: 100-continue\r\n\r\n",
 '{"model":"m","prompt":"ok"}']
--- abort
--- timeout: 1
--- wait: 0.1
--- worker_log
text: "ok"



=== TEST 18: an error in the middle of a body is answered at once
--- raw_request eval
"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n{\"model\":\"m\",\"nonsense\""
--- error_code: 400
--- response_headers
Connection: close
--- response_body_like: Unknown parameter: 'nonsense'



=== TEST 19: a body that does not go on
--- config
location /v1/ { client_body_timeout 100ms; pd_pass chat; }
--- raw_request eval
"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{\"model\":\"m\""
--- error_code: 0
--- no_worker_log
submit



=== TEST 20: a client that leaves in the middle of its body
--- raw_request eval
"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{\"model\":\"m\""
--- steps
client request
sleep 0.1
client close
nginx expect client prematurely closed connection
--- no_worker_log
submit



=== TEST 21: the connection is kept after a refusal of a whole request
--- raw_request eval
["POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 16\r\n\r\n{\"prompt\":\"none\"",
 "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 27\r\n\r\n{\"model\":\"m\",\"prompt\":\"ok\"}"]
--- steps
client request
client expect /invalid_json.*HTTP\/1.1 200.*text_completion/
--- error_code: 400
--- response_headers
Connection: keep-alive



=== TEST 22: a body that another module has read before, into a file
--- config
location /v1/ { client_body_buffer_size 1k; mirror /mirror; pd_pass chat; }
location = /mirror { internal; proxy_pass http://127.0.0.1:{{port}}/sink; }
location = /sink { return 200; }
--- request eval
"POST /v1/completions\n{\"model\":\"m\",\"prompt\":\"" . "0123456789" x 3000 . "\"}"
--- response_body_like: "finish_reason":"stop"
--- worker_log
submit .* bytes=300\d\d
--- error_log
a client request body is buffered to a temporary file



=== TEST 23: sampling parameters and the prompt reach the worker
--- request
POST /v1/chat/completions
{"model":"m","messages":[{"role":"system","content":"s"},{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}],"temperature":0.5,"top_p":0.5,"top_k":7,"min_p":0.25,"typical_p":0.75,"presence_penalty":1,"frequency_penalty":-1,"repetition_penalty":1.5,"seed":42,"stop":["x"],"max_completion_tokens":2,"min_tokens":1,"ignore_eos":true,"user":"u"}
--- response_body_like: "finish_reason":"length"
--- worker_log
chat \{ messages \{ role: "system" content: "s" \} messages \{ role: "user" content: "a\\nb" \} \}
temperature: 0.5 top_p: 0.5 top_k: 7 min_p: 0.25 presence_penalty: 1.0 frequency_penalty: -1.0 repetition_penalty: 1.5 seed: 42 max_tokens: 2 min_tokens: 1 ignore_eos: true stop: "x" typical_p: 0.75



=== TEST 24: methods
--- request
GET /v1/chat/completions
--- error_code: 405
--- response_headers
Allow: POST
--- response_body chomp
{"error":{"message":"/v1/chat/completions does not take GET; use POST","type":"invalid_request_error","param":null,"code":"method_not_allowed"}}



=== TEST 25: paths
--- request
POST /v1/embeddings
{}
--- error_code: 404
--- response_body chomp
{"error":{"message":"There is no operation at /v1/embeddings","type":"invalid_request_error","param":null,"code":"unknown_url"}}



=== TEST 26: the API may live anywhere
--- config
location ~ ^/team/[a-z]+/ { pd_pass chat; }
--- request
POST /team/blue/openai/v1/completions
{"model":"m","prompt":"ok"}
--- response_body_like: "object":"text_completion"



=== TEST 27: "if" in the location keeps its cluster
--- config
location /v1/ { pd_pass chat; if ($http_x_debug) { set $x 1; } }
--- more_headers
X-Debug: 1
--- request
POST /v1/completions
{"model":"m","prompt":"ok"}
--- response_body_like: "object":"text_completion"



=== TEST 28: HTTP/1.0
--- request
POST /v1/completions HTTP/1.0
{"model":"m","prompt":"ok","stream":true}
--- response_body_like: \[DONE\]
