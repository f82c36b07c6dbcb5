# What a load balancer in front of nginx hears.

use Test::Nginx::Socket 'no_plan';

run_tests();

__DATA__

=== TEST 1: live says that this process answers
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{nobody}} role=mixed; }
--- config
location = /health { pd_health live; }
--- request
GET /health
--- response_headers
Content-Type: application/json
--- response_body
{"status":"live","clusters":{"chat":"waiting"}}



=== TEST 2: ready is 503 as long as a cluster cannot serve
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{nobody}} role=mixed; }
pd_cluster "co\"de" { register on; }
--- config
location = /health/ready { pd_health ready; }
--- request
GET /health/ready
--- error_code: 503
--- response_body
{"status":"waiting","clusters":{"chat":"waiting","co\"de":"waiting"}}



=== TEST 3: other methods are refused
--- http_config
pd_zone pd:1m;
pd_cluster chat { register on; }
--- config
location = /health { pd_health live; }
--- request
POST /health
x=1
--- error_code: 405



=== TEST 4: ready without clusters
--- config
location = /health/ready { pd_health ready; }
--- request
GET /health/ready
--- response_body
{"status":"ready","clusters":{}}
