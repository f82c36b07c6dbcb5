# Whoever refuses a request in a location with pd_pass, its client reads JSON.

use Test::Nginx::Socket 'no_plan';

add_block_preprocessor(sub {
    my ($block) = @_;

    $block->set_value(http_config => 'pd_zone pd:1m;
        pd_cluster chat { worker {{m}} ' . ($block->role // '') . '; '
        . ($block->cluster // '') . '}' . ($block->http // ''));
    $block->set_value(worker => 'm ' . ($block->options // ''));
    defined $block->config
        or $block->set_value(config => 'location /v1/ { pd_pass chat; }');
    defined $block->request || defined $block->raw_request
        or $block->set_value(request => "POST /v1/completions\n"
                             . '{"model":"m","prompt":"hi"}');
});

run_tests();

__DATA__

=== TEST 1: deny
--- config
location /v1/ { deny all; pd_pass chat; }
--- error_code: 403
--- response_headers
Content-Type: application/json
--- response_body chomp
{"error":{"message":"The caller is not allowed to make this request.","type":"permission_error","param":null,"code":"forbidden"}}



=== TEST 2: auth_basic keeps its challenge
--- config
location /v1/ { auth_basic "keys"; auth_basic_user_file /nowhere; pd_pass chat; }
--- error_code: 401
--- response_headers
Content-Type: application/json
WWW-Authenticate: Basic realm="keys"
--- response_body chomp
{"error":{"message":"The request carries no valid API key.","type":"authentication_error","param":null,"code":"invalid_api_key"}}



=== TEST 3: auth_request
--- config
location /v1/ { auth_request /auth; pd_pass chat; }
location = /auth { return 403; }
--- error_code: 403
--- response_body_like: "code":"forbidden"



=== TEST 4: limit_req, with when to come again
--- http
limit_req_zone $server_name zone=one:1m rate=1r/m;
limit_req_status 429;
--- config
location /v1/ { limit_req zone=one; pd_pass chat; }
--- steps
client1 request
client1 finish
client request
--- error_code: 429
--- response_headers
Retry-After: 1
Content-Type: application/json
--- response_body chomp
{"error":{"message":"Too many requests from this caller.","type":"rate_limit_error","param":null,"code":"rate_limit_exceeded"}}



=== TEST 5: "return" in the location
--- config
location /v1/ { return 503 "closed"; pd_pass chat; }
--- error_code: 503
--- response_headers
Retry-After: 1
--- response_body chomp
{"error":{"message":"No capacity to serve the request now.","type":"server_error","param":null,"code":"service_unavailable"}}



=== TEST 6: a model that is not there
--- request
POST /v1/completions
{"model":"other","prompt":"x"}
--- steps
worker m expect attach
nginx expect attached
client request
--- error_code: 404
--- response_body chomp
{"error":{"message":"The model `other` does not exist.","type":"invalid_request_error","param":"model","code":"model_not_found"}}



=== TEST 7: a worker finds the request invalid
--- options
refuse=INVALID message=no_such_token param=prompt
--- error_code: 400
--- response_body chomp
{"error":{"message":"no such token","type":"invalid_request_error","param":"prompt","code":"bad_request"}}



=== TEST 8: a worker finds it too long
--- options
refuse=CONTEXT_LENGTH message=4_tokens_too_many
--- error_code: 400
--- response_body_like: "message":"4 tokens too many",.*"code":"context_length_exceeded"



=== TEST 9: no worker has room
--- options
refuse=CAPACITY retry_after=3000
--- error_code: 503
--- response_headers
Retry-After: 3
--- response_body_like: "type":"server_error"



=== TEST 10: a page of one's own is left alone
--- config
location /v1/ { error_page 403 /sorry; deny all; pd_pass chat; }
location = /sorry { internal; return 403 sorry; }
--- error_code: 403
--- response_body chomp
sorry



=== TEST 11: a page of one's own for the module's errors too
--- config
location /v1/ { error_page 400 =200 /sorry; pd_pass chat; }
location = /sorry { internal; return 200 "$pd_error $pd_request_id"; }
--- more_headers
X-Request-Id: abc-1
--- request
POST /v1/completions
{"model":5}
--- response_body chomp
invalid_type abc-1



=== TEST 12: other locations are left alone
--- config
location /v1/ { pd_pass chat; }
location /other { deny all; }
--- request
GET /other
--- error_code: 403
--- response_headers
Content-Type: text/html
X-Request-Id:



=== TEST 13: HEAD has the headers only
--- config
location /v1/ { deny all; pd_pass chat; }
--- request
HEAD /v1/models
--- error_code: 403
--- response_headers
Content-Length: 129
Content-Type: application/json



=== TEST 14: every answer says the request's id
--- more_headers
X-Request-Id: aZ09._-
--- response_headers
X-Request-Id: aZ09._-
--- response_body_like: "id":"cmpl-aZ09\._-"
--- worker_log
request_id: "aZ09._-"



=== TEST 15: an id that could hurt is replaced
--- more_headers
X-Request-Id: a"b
--- response_body_like: "id":"cmpl-[0-9a-f]{32}"



=== TEST 16: so is one that is too long
--- more_headers eval
"X-Request-Id: " . "x" x 57
--- response_body_like: "id":"cmpl-[0-9a-f]{32}"



=== TEST 17: traceparent is handed on
--- more_headers
traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01
--- response_body_like: text_completion
--- worker_log
traceparent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"



=== TEST 18: a subrequest is refused
--- config
location /v1/ { pd_pass chat; }
location /sub { auth_request /v1/models; stub_status; }
--- request
GET /sub
--- error_code: 500
--- error_log
"pd_pass" cannot serve a subrequest



=== TEST 19: a fallback that would need the body again
--- config
location /v1/ { error_page 404 = @other; pd_pass chat; }
location @other { pd_pass chat; }
--- request
POST /v1/completions
{"model":"other","prompt":"x"}
--- steps
worker m expect attach
nginx expect attached
client request
--- error_code: 500
--- response_body_like: "code":"internal_error"
--- error_log
nothing is left of the request's body
