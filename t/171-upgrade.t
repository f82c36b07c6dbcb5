# Another binary beside the old one (SIGUSR2), which then leaves.

use Test::Nginx::Socket 'no_plan';

add_block_preprocessor(sub {
    my ($block) = @_;

    my $stream = "POST /v1/completions\n"
                 . '{"model":"m","prompt":"hello","stream":true}';

    $block->set_value(daemon => 1);
    $block->set_value(workers => 2);
    defined $block->config
        or $block->set_value(config => 'location /v1/ { pd_pass chat; }');
    defined $block->request or $block->set_value(request => <<'END');
POST /v1/completions
{"model":"m","prompt":"hello","max_tokens":3}
END
    $block->set_value("request_client_held$_" => $stream) for '', 2, 3;
});

run_tests();

__DATA__

=== TEST 1: no stream breaks, none is refused, and no worker is marked down
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{p0}}; worker {{d0}}; ejection faults=1; }
--- worker
p0 role=prefill
d0 role=decode gate=third
--- steps
nginx expect attached
nginx expect attached
nginx expect attached
nginx expect attached
client_held request
client_held expect t1
nginx upgrade
client_held2 request
client_held2 expect t1
nginx expect attached
nginx expect attached
nginx expect attached
nginx expect attached
nginx old QUIT
nginx expect gracefully shutting down
client_held3 request
client_held3 expect t1
worker d0 release
worker d0 release
worker d0 release
client_held expect [DONE]
client_held2 expect [DONE]
client_held3 expect [DONE]
nginx old_exits
worker d0 release
nginx ask 1 200
nginx lacks lost worker
nginx lacks is ejected
nginx lacks left out
--- no_worker_log
cancel
d0 submit request=\d+ attempt=[2-9]



=== TEST 2: limits and ejections survive it in the state file
--- http_config
pd_zone pd:1m state={{root}}/pd.state;
pd_cluster chat {
    worker {{m0}}; worker {{m1}} backup; ejection faults=1 backoff=1m;
}
--- config
location /v1/ { pd_pass chat; pd_limit requests=2; }
--- worker
m0 fail=INTERNAL
m1
--- steps
nginx expect attached
nginx expect attached
nginx expect attached
nginx expect attached
nginx ask 2 200
nginx ask 1 429
nginx expect is ejected
sleep 1.2
nginx upgrade
nginx old QUIT
nginx old_exits
nginx ask 1 429
worker m0 lacks request=2



=== TEST 3: a new binary that goes again leaves all as it was
--- http_config
pd_zone pd:1m state={{root}}/pd.state;
pd_cluster chat { worker {{m0}}; }
--- config
location /v1/ { pd_pass chat; pd_limit requests=2; }
--- worker
m0 gate=third
--- steps
nginx expect attached
nginx expect attached
client_held request
client_held expect t1
nginx upgrade
nginx expect attached
nginx expect attached
nginx signal QUIT
nginx back
worker m0 release
client_held expect [DONE]
worker m0 release
nginx ask 1 200
nginx ask 1 429
nginx lacks lost worker



=== TEST 4: what the old one still writes does not undo what the new one has written
--- http_config
pd_zone pd:1m state={{root}}/pd.state;
pd_cluster chat { worker {{m0}}; worker {{m1}} backup; }
--- config
location /v1/ { pd_pass chat; pd_limit requests=4; }
--- worker
m0 gate=third max_seqs=1
m1
--- steps
nginx expect attached
nginx expect attached
nginx expect attached
nginx expect attached
client_held request
client_held expect t1
sleep 1.1
nginx upgrade
nginx expect attached
nginx expect attached
nginx expect attached
nginx expect attached
nginx old QUIT
nginx expect gracefully shutting down
nginx ask 3 200
sleep 1.2
worker m0 release
client_held expect [DONE]
nginx old_exits
nginx restart
client5 request
client5 finish
client6 request
client6 finish
client7 request
client7 finish
client7 status 429
