# What nginx -t says: the directive at fault and the cure.

use Test::Nginx::Socket 'no_plan';

run_tests();

__DATA__

=== TEST 1: a cluster without shared memory
--- http_config
pd_cluster chat { worker 127.0.0.1:9000; }
--- must_die
--- error_log
"pd_cluster chat" in
has no shared memory: write "pd_zone NAME:SIZE;" in the http block



=== TEST 2: a zone without a size
--- http_config
pd_zone pd;
--- must_die
--- error_log
invalid "pd_zone pd": write NAME:SIZE, for example pd:32m



=== TEST 3: a zone that is too small
--- http_config
pd_zone pd:64k;
--- must_die
--- error_log
invalid size "64k" in "pd_zone pd:64k": use 512k or more



=== TEST 4: two zones
--- http_config
pd_zone one:1m;
pd_zone two:1m;
--- must_die
--- error_log
"pd_zone" directive is duplicate: one zone serves all clusters



=== TEST 5: pd_pass to nobody
--- http_config
pd_zone pd:1m;
--- config
location / { pd_pass chat; }
--- must_die
--- error_log
unknown cluster "chat" in
define it with "pd_cluster chat { ... }"



=== TEST 6: a cluster may be defined after its use
--- config
location / { pd_pass chat; }
location = /health { pd_health live; }
    }
    pd_zone pd:1m;
    pd_cluster chat { register on; }
    server {
        listen {{other}};
--- request
GET /health
--- response_body
{"status":"live","clusters":{"chat":"waiting"}}



=== TEST 7: the same cluster twice
--- http_config
pd_zone pd:1m;
pd_cluster chat { register on; }
pd_cluster chat { register on; }
--- must_die
--- error_log
duplicate "pd_cluster chat"



=== TEST 8: a cluster that can never have a worker
--- http_config
pd_zone pd:1m;
pd_cluster chat { queue 5; }
--- must_die
--- error_log
"pd_cluster chat" can never have a worker: add a "worker" line or "register on"



=== TEST 9: a worker without a port
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker 10.0.0.1; }
--- must_die
--- error_log
no port in "worker 10.0.0.1": write 10.0.0.1:9000



=== TEST 10: a worker with an impossible port
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker 10.0.0.1:99999; }
--- must_die
--- error_log
invalid port in "worker 10.0.0.1:99999": write HOST:PORT



=== TEST 11: the same worker twice
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker 10.0.0.1:9000; worker 10.0.0.1:9000; }
--- must_die
--- error_log
duplicate worker "10.0.0.1:9000" in "pd_cluster chat"



=== TEST 12: a role that does not exist
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker 10.0.0.1:9000 role=both; }
--- must_die
--- error_log
invalid role "both" in "worker": use prefill, decode or mixed



=== TEST 13: a parameter that does not exist, with its line
--- http_config
pd_zone pd:1m;
pd_cluster chat {
    worker 10.0.0.1:9000 max_fails=3;
}
--- must_die
--- error_log eval
qr/invalid parameter "max_fails=3" in "worker": use role=, zone=, weight=, max_streams=, down or backup in .*nginx.conf:\d+/



=== TEST 14: numbers out of range
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker 10.0.0.1:9000 weight=0; }
--- must_die
--- error_log
invalid "weight=0" in "worker": use weight=1 to weight=1000



=== TEST 15: a limit of streams out of range
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker 10.0.0.1:9000 max_streams=x; }
--- must_die
--- error_log
invalid "max_streams=x" in "worker": use max_streams=1 to max_streams=65535



=== TEST 16: an unknown directive in the block, named like nginx does
--- http_config
pd_zone pd:1m;
pd_cluster chat {
    server 10.0.0.1:9000;
}
--- must_die
--- error_log eval
qr/"server" directive is not allowed here in .*nginx.conf:\d+/



=== TEST 17: a queue that holds nobody
--- http_config
pd_zone pd:1m;
pd_cluster chat { register on; queue 0; }
--- must_die
--- error_log
invalid length "0" in "queue": use 1 to 1000000 requests



=== TEST 18: a queue with a timeout that is no time
--- http_config
pd_zone pd:1m;
pd_cluster chat { register on; queue 5 timeout=soon; }
--- must_die
--- error_log
invalid parameter "timeout=soon" in "queue": use timeout=1ms to timeout=1h



=== TEST 19: a threshold that is no number
--- http_config
pd_zone pd:1m;
pd_cluster chat { register on; direct_threshold low; }
--- must_die
--- error_log
invalid value "low" in "direct_threshold": use "off", "auto" or 1 to 1000000 tokens



=== TEST 20: registration is on or off
--- http_config
pd_zone pd:1m;
pd_cluster chat { register yes; }
--- must_die
--- error_log
invalid value "yes" in "register": use "on" or "off"



=== TEST 21: an empty token
--- http_config
pd_zone pd:1m;
pd_cluster chat { register on token=; }
--- must_die
--- error_log
invalid parameter "token=" in "register": use token= and 1 to 256 characters, or lease=1s to lease=1h



=== TEST 22: pd_register to a cluster that takes none
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker 10.0.0.1:9000; }
--- config
location = /pd.v1.Dispatcher/Register { pd_register chat; }
--- must_die
--- error_log
takes no registrations: write "register on;" in "pd_cluster chat"



=== TEST 23: directives that may come once
--- http_config
pd_zone pd:1m;
pd_cluster chat { register on; queue 5; queue 6; }
--- must_die
--- error_log
"queue" directive is duplicate



=== TEST 24: a kind of health that does not exist
--- config
location = /health { pd_health alive; }
--- must_die
--- error_log
invalid value "alive"



=== TEST 25: everything at once, with an include
--- http_config
pd_zone pd:1m;
pd_cluster chat {
    include {{root}}/*.workers;
    worker {{a}} role=prefill zone=rack1 weight=2 max_streams=8;
    worker "[::1]:9" role=decode zone=rack1 backup;
    worker unix:{{root}}/worker.sock role=mixed down;
    register on token=secret;
    queue 10 timeout=1s;
    direct_threshold 100;
    borrow_threshold 100 timeout=2s;
}
--- config
location = /health { pd_health live; }
location = /pd.v1.Dispatcher/Register { pd_register chat; }
--- request
GET /health
--- response_body
{"status":"live","clusters":{"chat":"waiting"}}



=== TEST 26: a state file without a path
--- http_config
pd_zone pd:1m state=;
--- must_die
--- error_log
invalid parameter "state=" in "pd_zone": use state=PATH



=== TEST 27: a threshold for borrowing that is no number
--- http_config
pd_zone pd:1m;
pd_cluster chat { register on; borrow_threshold 0; }
--- must_die
--- error_log
invalid value "0" in "borrow_threshold": use "off", "auto" or 1 to 1000000 tokens



=== TEST 28: nobody waits for longer than workers do
--- http_config
pd_zone pd:1m;
pd_cluster chat { register on; borrow_threshold auto timeout=61s; }
--- must_die
--- error_log
invalid parameter "timeout=61s" in "borrow_threshold": use timeout=1ms to timeout=60s



=== TEST 29: it is said once
--- http_config
pd_zone pd:1m;
pd_cluster chat { register on; borrow_threshold off; borrow_threshold 5 timeout=60s; }
--- must_die
--- error_log
"borrow_threshold" directive is duplicate
