# What a tenant may have: requests and tokens a minute, at once, and the
# largest. Limits here are paid off so slowly that no test waits for it.

use Test::Nginx::Socket 'no_plan';

add_block_preprocessor(sub {
    my ($block) = @_;

    return if defined $block->must_die;

    defined $block->worker
        or $block->set_value(worker => 'm0 prompt=10');
    defined $block->request
        or $block->set_value(request => <<'END');
POST /v1/completions
{"model":"m","prompt":"hello","stream":true}
END
    defined $block->http_config
        or $block->set_value(http_config => <<'END');
pd_zone pd:1m;
pd_cluster chat { worker {{m0}}; }
END

    my $limit = $block->limit // '';
    defined $block->config
        or $block->set_value(config => <<"END");
pd_tenant \$http_x_tenant;
$limit
location /v1/ {
    pd_pass chat;
    add_header X-Limit "\$pd_limit_status \$pd_limit_reason" always;
}
END
    defined $block->more_headers
        or $block->set_value(more_headers => 'X-Tenant: acme');
});

run_tests();

__DATA__

=== TEST 1: requests a minute
--- limit: pd_limit requests=2;
--- steps
client2 request
client2 expect t2
client3 request
client3 expect t2
client request
client finish
--- error_code: 429
--- response_headers_like
Retry-After: (30|[12]\d|[1-9])
x-ratelimit-limit-requests: 2
x-ratelimit-remaining-requests: 0
x-ratelimit-reset-requests: [3-5]\d\.\d\d\ds|1m0\.000s
X-Limit: REJECTED requests
--- response_body_like
^\{"error":\{"message":"Rate limit reached: 2 requests a minute\.","type":"rate_limit_error","param":null,"code":"rate_limit_exceeded"\}\}$



=== TEST 2: what is left is said with every answer
--- limit: pd_limit requests=3 tokens=100;
--- response_headers_like
x-ratelimit-limit-requests: 3
x-ratelimit-remaining-requests: 2
x-ratelimit-reset-requests: (20\.000|1\d\.\d\d\d|\d\.\d\d\d)s
x-ratelimit-limit-tokens: 100
x-ratelimit-remaining-tokens: [78]\d
x-ratelimit-reset-tokens: 1?\d\.\d\d\ds
X-Limit: PASSED \S*



=== TEST 3: without limits nothing is said
--- response_headers
x-ratelimit-limit-requests:
x-ratelimit-limit-tokens:



=== TEST 4: running streams do not exceed the tokens together
--- limit: pd_limit tokens=100;
--- worker
m0 prompt=2 gate=finish
--- request
POST /v1/completions
{"model":"m","prompt":"hello","stream":true,"max_tokens":40}
--- steps
client2 request
client2 expect t1
client3 request
client3 expect t1
client request
client finish
worker m0 release
client2 expect t2
worker m0 release
client3 expect t2
--- error_code: 429
--- response_headers_like
Retry-After: \d+
X-Limit: REJECTED tokens
--- response_body_like: 100 tokens a minute
--- no_worker_log
submit request=3



=== TEST 5: what an answer does not use is given back at its end
--- limit: pd_limit tokens=100;
--- worker
m0 prompt=2 gate=finish
--- request
POST /v1/completions
{"model":"m","prompt":"hello","stream":true,"max_tokens":80}
--- steps
client2 request
client2 expect t1
client3 request
client3 finish
client3 status 429
worker m0 release
client2 finish
client request
client expect t1
worker m0 release
client expect t2
--- response_headers_like
x-ratelimit-remaining-tokens: (1[0-9]|2[0-9])



=== TEST 6: streams are counted like others, by what they were
--- limit: pd_limit tokens=100;
--- worker
m0 prompt=50
--- request
POST /v1/completions
{"model":"m","prompt":"hello","stream":true,"max_tokens":49}
--- steps
client2 request
client2 finish
client request
client finish
--- error_code: 429



=== TEST 7: a prompt that is longer than it seemed holds up the next at once
--- limit: pd_limit tokens=100;
--- worker
m0 prompt=90 gate=finish
--- request
POST /v1/completions
{"model":"m","prompt":"hello","stream":true,"max_tokens":5}
--- steps
client2 request
client2 expect t0
client request
client finish
worker m0 release
client2 expect t2
--- error_code: 429
--- response_headers_like
x-ratelimit-remaining-tokens: [5-9]|1\d



=== TEST 8: one that is shorter makes room
--- limit: pd_limit tokens=100;
--- worker
m0 prompt=1 gate=finish
--- request eval
'POST /v1/completions
{"model":"m","prompt":"' . 'x' x 320 . '","stream":true,"max_tokens":5}'
--- steps
client2 request
client2 expect t0
client request
worker m0 expect submit request=2
worker m0 release
worker m0 release
client2 expect t2
client expect t2



=== TEST 9: without a length of its own, an answer ends with the tokens
--- limit: pd_limit tokens=300;
--- worker eval
"m0 prompt=10 text=" . CORE::join('|', map { "t${_}_" } 0 .. 499)
--- request
POST /v1/chat/completions
{"model":"m","messages":[{"role":"user","content":"hello"}],"stream":true,"stream_options":{"include_usage":true}}
--- steps
client request
client finish
--- response_body_like
t280 .*"finish_reason":"length".*"completion_tokens":(29\d|3\d\d).*\[DONE\]
--- worker_log
cancel request=1 attempt=1 reason=FINISHED_ELSEWHERE
--- error_log
has no more this minute, and the request sets no length



=== TEST 10: and not before
--- limit: pd_limit tokens=1000;
--- worker eval
"m0 prompt=10 text=" . CORE::join('|', map { "t${_}_" } 0 .. 499)
--- request
POST /v1/chat/completions
{"model":"m","messages":[{"role":"user","content":"hello"}],"stream":true}
--- response_body_like
t499 .*"finish_reason":"stop"
--- no_worker_log
cancel



=== TEST 11: requests at once
--- limit: pd_limit concurrent=1;
--- worker
m0 gate=finish
--- steps
client2 request
client2 expect t1
client request
client finish
worker m0 release
client2 finish
client3 request
client3 expect t1
worker m0 release
client3 finish
--- error_code: 429
--- response_headers_like
Retry-After: \d+
X-Limit: REJECTED concurrent



=== TEST 12: who leaves is not counted any more
--- limit: pd_limit concurrent=1 requests=60;
--- worker
m0 gate=finish
--- steps
client2 request
client2 expect t1
client2 close
worker m0 expect cancel request=1
client request
client expect t1
worker m0 release
client expect t2



=== TEST 13: the longest answer
--- limit: pd_limit max_output=100;
--- request
POST /v1/completions
{"model":"m","prompt":"hello","max_tokens":101}
--- error_code: 400
--- response_body_like
"param":"max_tokens","code":"integer_above_max_value"
--- no_worker_log
submit



=== TEST 14: is what who asks for none gets
--- limit: pd_limit max_output=100;
--- request
POST /v1/chat/completions
{"model":"m","messages":[{"role":"user","content":"hello"}],"stream":true}
--- worker_log
message .*max_tokens: 100



=== TEST 15: and the default of completions is no wish
--- limit: pd_limit max_output=8;
--- worker_log
message .*max_tokens: 8



=== TEST 16: the longest prompt, by its exact length
--- limit: pd_limit max_prompt=9;
--- worker
m0 prompt=10 gate=first
--- error_code: 400
--- response_body_like
the 9 tokens that the caller may send.","type":"invalid_request_error","param":"prompt","code":"prompt_above_limit"
--- worker_log
cancel request=1



=== TEST 17: at its limit it is served
--- limit: pd_limit max_prompt=10;
--- response_body_like: t2



=== TEST 18: what is far too long goes nowhere
--- limit: pd_limit max_prompt=10;
--- request eval
'POST /v1/completions
{"model":"m","prompt":"' . 'x' x 1000 . '"}'
--- error_code: 400
--- response_body_like: prompt_above_limit
--- no_worker_log
submit



=== TEST 19: what would never fit is not told to wait
--- limit: pd_limit tokens=50;
--- request
POST /v1/completions
{"model":"m","prompt":"hello","max_tokens":100}
--- error_code: 413
--- response_headers
Retry-After:
X-Limit: REJECTED large
--- response_body_like: request_above_limit



=== TEST 20: each tenant for itself
--- limit: pd_limit requests=1;
--- more_headers_client2
X-Tenant: other
--- steps
client2 request
client2 expect t2
client request
client expect t2



=== TEST 21: and for each model
--- limit: pd_limit requests=1;
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{m0}}; worker {{m1}}; }
--- worker
m0
m1 model=other
--- request_client2
POST /v1/completions
{"model":"other","prompt":"hello","stream":true}
--- steps
nginx expect attached
nginx expect attached
client2 request
client2 expect t2
client request
client expect t2



=== TEST 22: several prompts are several requests, all or none
--- limit: pd_limit requests=4;
--- request
POST /v1/completions
{"model":"m","prompt":["a","b","c"],"stream":true}
--- steps
client2 request
client2 finish
client request
client finish
--- error_code: 429
--- response_headers
x-ratelimit-remaining-requests: 1
--- no_worker_log
submit request=4



=== TEST 23: all processes count together
--- limit: pd_limit requests=1;
--- workers: 2
--- steps
worker m0 expect attach
worker m0 expect attach
client2 connect 0
client connect 1
client2 request
client2 expect t2
client request
client finish
--- error_code: 429



=== TEST 24: a reload forgives nothing
--- limit: pd_limit requests=1;
--- workers: 1
--- steps
client2 request
client2 expect t2
nginx reload
worker m0 expect detach
worker m0 expect attach
client request
client finish
--- error_code: 429



=== TEST 25: but may bring other limits
--- limit: pd_limit requests=1;
--- workers: 1
--- reload_config
pd_tenant $http_x_tenant;
pd_limit requests=2;
location /v1/ { pd_pass chat; }
--- steps
client2 request
client2 expect t2
nginx reload
worker m0 expect detach
worker m0 expect attach
client request
client expect t2



=== TEST 26: the requests of a process that dies do not run any more
--- limit: pd_limit concurrent=1;
--- workers: 2
--- timeout: 10
--- worker
m0 gate=finish
--- steps
worker m0 expect attach
worker m0 expect attach
client connect 1
client2 connect 0
client2 request
client2 expect t1
client3 connect 1
client3 request
client3 finish
client3 status 429
nginx child KILL 0
worker m0 expect detach
worker m0 expect attach
client request
client expect t1
worker m0 release
client expect t2
--- ignore_log
exited on signal 9



=== TEST 27: a new master forgives nothing either
--- limit: pd_limit requests=1;
--- workers: 1
--- http_config
pd_zone pd:1m state={{root}}/state;
pd_cluster chat { worker {{m0}}; }
--- steps
client2 request
client2 expect t2
nginx restart
client request
client finish
--- error_code: 429
--- response_headers_like
Retry-After: \d\d



=== TEST 28: what nobody could serve costs nothing
--- limit: pd_limit requests=2 tokens=100;
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{m0}} max_streams=1; queue 1 timeout=300ms; }
--- worker
m0 gate=finish prompt=2
--- more_headers_client2
X-Tenant: other
--- more_headers_client3
X-Tenant: other
--- request
POST /v1/completions
{"model":"m","prompt":"hello","stream":true,"max_tokens":90}
--- request_client2
POST /v1/completions
{"model":"m","prompt":"hello","stream":true,"max_tokens":4}
--- request_client3
POST /v1/completions
{"model":"m","prompt":"hello","stream":true,"max_tokens":4}
--- steps
client2 request
client2 expect t1
client3 request
sleep 0.1
client4 request
client4 finish
client4 status 503
client3 finish
client3 status 503
worker m0 release
client2 finish
client request
client expect t1
worker m0 release
client expect t2
--- response_headers_like
x-ratelimit-remaining-requests: 1



=== TEST 29: dry_run lets pass, and says so
--- limit
pd_limit requests=1;
pd_limit_dry_run on;
--- steps
client2 request
client2 expect t2
client request
client expect t2
client finish
--- response_headers
X-Limit: REJECTED_DRY_RUN requests
x-ratelimit-remaining-requests: 0
--- error_log
of tenant "acme" is over its limit (requests), dry run



=== TEST 30: limits of the key file come before others
--- config
pd_key_file {{root}}/keys;
pd_limit requests=1 max_output=50;
location /v1/ { pd_pass chat; }
--- user_files
>>> keys
tenant acme requests=5
limit acme m requests=3
key acme 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
--- more_headers
Authorization: Bearer test
--- request
POST /v1/chat/completions
{"model":"m","messages":[{"role":"user","content":"hello"}],"stream":true}
--- response_headers
x-ratelimit-limit-requests: 3
--- worker_log
message .*max_tokens: 50



=== TEST 31: and may lift them
--- config
pd_key_file {{root}}/keys;
pd_limit requests=1;
location /v1/ { pd_pass chat; }
--- user_files
>>> keys
tenant acme requests=off
key acme 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
--- more_headers
Authorization: Bearer test
--- steps
client2 request
client2 expect t2
client request
client expect t2
--- response_headers
x-ratelimit-limit-requests:



=== TEST 32: no such limit
--- config
pd_limit speed=5;
--- must_die
--- error_log
invalid parameter "speed=5" in "pd_limit": use requests=, tokens=, concurrent=, max_prompt= or max_output=



=== TEST 33: no such number
--- config
pd_limit requests=0;
--- must_die
--- error_log
invalid "requests=0" in "pd_limit": a limit is a number from 1 to 1000000000, or "off"



=== TEST 34: a state file that lies
--- limit: pd_limit requests=1;
--- http_config
pd_zone pd:1m state={{root}}/state;
pd_cluster chat { worker {{m0}}; }
--- user_files
>>> state
ngx_pd 1
seed 0123456789abcdef
account 0123456789abcdef 99999999999 1 1 1 1
end
--- error_log
state" is damaged, what it says is not believed
