# Who a caller is: pd_tenant, pd_key_file.

use Test::Nginx::Socket 'no_plan';

add_block_preprocessor(sub {
    my ($block) = @_;

    defined $block->worker
        or defined $block->must_die
        or $block->set_value(worker => 'm0');
    defined $block->request
        or defined $block->must_die
        or $block->set_value(request => <<'END');
POST /v1/completions
{"model":"m","prompt":"hello","stream":true}
END
    defined $block->http_config
        or $block->set_value(http_config => <<'END');
pd_zone pd:1m;
pd_cluster chat { worker {{m0}}; }
END
    defined $block->config
        or $block->set_value(config => <<'END');
pd_key_file {{root}}/keys;
location /v1/ { pd_pass chat; add_header X-Tenant "<$pd_tenant>" always; }
END

    # the key of acme is "test", that of other is "abc"
    defined $block->user_files
        or $block->set_value(user_files => <<'END');
>>> keys
tenant acme models=m,n
tenant other models=other
key acme 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
key other ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad
END
});

run_tests();

__DATA__

=== TEST 1: a key is known, and its tenant told to the worker
--- more_headers
Authorization: Bearer test
--- response_body_like: t2
--- response_headers
X-Tenant: <acme>
--- worker_log
message .*tenant: "acme"



=== TEST 2: no key
--- error_code: 401
--- response_headers
WWW-Authenticate: Bearer realm="pd"
X-Tenant: <>
--- response_body_like
^\{"error":\{"message":"The request carries no API key: .*","type":"authentication_error","param":null,"code":"missing_api_key"\}\}$
--- no_worker_log
submit



=== TEST 3: a wrong key, which nobody repeats
--- more_headers
Authorization: Bearer sk-not-this-one
--- error_code: 401
--- response_headers
WWW-Authenticate: Bearer realm="pd", error="invalid_token"
--- response_body_like
^\{"error":\{"message":"The API key is not valid\.","type":"authentication_error","param":null,"code":"invalid_api_key"\}\}$
--- no_error_log
sk-not-this-one
--- no_worker_log
submit



=== TEST 4: the hash of a key opens nothing
--- more_headers
Authorization: Bearer 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
--- error_code: 401



=== TEST 5: another scheme
--- more_headers
Authorization: Basic dGVzdDp0ZXN0
--- error_code: 401
--- response_body_like: missing_api_key



=== TEST 6: schemes have no case
--- more_headers
Authorization: bEARER   test
--- response_headers
X-Tenant: <acme>



=== TEST 7: a model that is not the caller's
--- more_headers
Authorization: Bearer abc
--- error_code: 403
--- response_body_like
^\{"error":\{"message":"The model `m` is not among .*","type":"permission_error","param":"model","code":"model_not_allowed"\}\}$
--- no_worker_log
submit



=== TEST 8: the list of models is the caller's
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{m0}}; worker {{m1}}; }
--- worker
m0
m1 model=other
--- request
GET /v1/models
--- request_client2
GET /v1/models/m
--- request_client3
GET /v1/models/other
--- more_headers
Authorization: Bearer abc
--- more_headers_client4
X-None: none
--- steps
nginx expect attached
nginx expect attached
client2 request
client2 finish
client2 status 404
client3 request
client3 finish
client3 status 200
client4 request
client4 finish
client4 status 401
client request
client finish
--- response_body_like
^\{"object":"list","data":\[\{"id":"other",[^{]*\}\]\}$



=== TEST 9: a name from a variable
--- config
location /v1/ {
    pd_tenant "team-$http_x_team";
    pd_pass chat;
    add_header X-Tenant "<$pd_tenant>" always;
}
--- more_headers
X-Team: red
--- response_headers
X-Tenant: <team-red>
--- worker_log
message .*tenant: "team-red"



=== TEST 10: what auth_request has found out
--- config
location /v1/ {
    auth_request /auth;
    auth_request_set $who $found;
    pd_tenant $who;
    pd_pass chat;
}
location = /auth {
    internal;
    set $found "user $http_x_name";
    return 204;
}
--- more_headers
X-Name: 7
--- worker_log
message .*tenant: "user 7"



=== TEST 11: nobody has found out
--- config
location /v1/ { pd_tenant $http_x_team; pd_pass chat; }
--- error_code: 401
--- response_headers
WWW-Authenticate: Bearer realm="pd"
--- response_body_like: "code":"unknown_tenant"
--- no_worker_log
submit



=== TEST 12: a name that is none
--- config
location /v1/ { pd_tenant $http_x_team; pd_pass chat; }
--- more_headers eval
"X-Team: " . 'x' x 129
--- error_code: 401
--- error_log
the value of "pd_tenant" is no name of 1 to 128 printable ASCII characters
--- no_error_log
xxx



=== TEST 13: nor one that no message can carry
--- config
location /v1/ { pd_tenant $http_x_team; pd_pass chat; }
--- more_headers eval
"X-Team: caf\xe9"
--- error_code: 401



=== TEST 14: pd_tenant says who it is, and the file what it may
--- config
pd_key_file {{root}}/keys;
pd_tenant $http_x_team;
location /v1/ { pd_pass chat; }
--- more_headers
X-Team: other
--- error_code: 403
--- response_body_like: model_not_allowed



=== TEST 15: whom the file does not know is not limited by it
--- config
pd_key_file {{root}}/keys;
pd_tenant $http_x_team;
location /v1/ { pd_pass chat; }
--- more_headers
X-Team: stranger
--- response_body_like: t2



=== TEST 16: a location may be open
--- config
pd_key_file {{root}}/keys;
location /v1/ { pd_key_file off; pd_pass chat; }
--- response_body_like: t2



=== TEST 17: a reload takes the new keys, and drops the old
--- workers: 1
--- more_headers
Authorization: Bearer abc
--- more_headers_client2
Authorization: Bearer test
--- more_headers_client3
Authorization: Bearer test
--- reload_user_files
>>> keys
tenant acme
key acme ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad
--- steps
client2 request
client2 expect t2
nginx reload
worker m0 expect detach
worker m0 expect attach
client3 request
client3 finish
client3 status 401
client request
client expect t2



=== TEST 18: after a reload with a bad file all goes on as it was
--- workers: 1
--- more_headers
Authorization: Bearer test
--- reload_user_files
>>> keys
tenant acme requests=none
--- steps
nginx reload
nginx expect keys", line 1, tenant acme: a limit is a number from 1 to 1000000000, or "off"
client request
client expect t2
--- ignore_log
[emerg]



=== TEST 19: the file, the line, the cure; not the key
--- user_files
>>> keys
tenant acme
key acme sk-in-the-clear
--- must_die
--- error_log
keys", line 2, tenant acme: write "key TENANT SHA256" with the 64 hexadecimal digits
--- no_error_log
in-the-clear



=== TEST 20: no such file
--- user_files
>>> key
--- must_die
--- error_log
/keys" failed in "pd_key_file"



=== TEST 21: a folder
--- config
pd_key_file {{root}};
--- must_die
--- error_log
must be a file of at most 4 megabytes



=== TEST 22: two files
--- config
pd_key_file {{root}}/keys;
pd_key_file {{root}}/keys;
--- must_die
--- error_log
"pd_key_file" directive is duplicate
