# Clients that leave, in each stage, and clients that are slow.

use Test::Nginx::Socket 'no_plan';

add_block_preprocessor(sub {
    my ($block) = @_;

    $block->set_value(http_config => 'pd_zone pd:1m; pd_cluster chat { '
        . ($block->cluster // 'worker {{p}} role=prefill;
           worker {{d}} role=decode;') . ' direct_threshold off; }'
        . ($block->http // ''));
    defined $block->worker
        or $block->set_value(worker => "p role=prefill " . ($block->p // '')
                             . "\nd role=decode " . ($block->d // '') . "\n");
    defined $block->config
        or $block->set_value(config => 'location /v1/ { pd_pass chat; }');
    defined $block->request || defined $block->raw_request
        or $block->set_value(request => "POST /v1/completions\n"
            . '{"model":"m","prompt":"' . 'x' x 300 . '","stream":true}');
});

run_tests();

__DATA__

=== TEST 1: a client leaves while its request waits in the queue
--- cluster
worker {{p}} role=prefill; worker {{d}} role=decode;
--- worker
p role=prefill max_seqs=1 gate=first
d role=decode max_seqs=1
--- steps
worker p expect attach
nginx expect attached
nginx expect attached
client1 request
worker p expect /submit request=1 /
client2 request
sleep 0.2
client2 close
nginx expect client prematurely closed connection
worker p release
client1 finish
client1 expect [DONE]
--- no_worker_log
submit request=2



=== TEST 2: a client leaves before its prompt is placed
--- p
gate=placed
--- steps
client request
worker p expect submit
client close
worker p expect /cancel request=1 attempt=1 reason=CLIENT_GONE/



=== TEST 3: a client leaves while its prompt is computed
--- p
gate=first
--- d
gate=first
--- steps
client request
worker d expect submit
client close
worker p expect /cancel request=1 attempt=1 reason=CLIENT_GONE/
worker d expect /cancel request=1 attempt=1 reason=CLIENT_GONE/



=== TEST 4: a client leaves before the decode worker has accepted
--- d
gate=placed
--- steps
client request
worker d expect submit
client close
worker d expect /cancel request=1 attempt=1 reason=CLIENT_GONE/



=== TEST 5: a client leaves while its answer streams
--- d
gate=token
--- steps
client request
client expect "text":"t0 "
client close
worker d expect /cancel request=1 attempt=1 reason=CLIENT_GONE/



=== TEST 6: a client that waits for a whole answer leaves
--- d
gate=token
--- request eval
'POST /v1/completions
{"model":"m","prompt":"' . 'x' x 300 . '"}'
--- steps
client request
worker d expect submit
sleep 0.1
client close
worker d expect /cancel request=1 attempt=1 reason=CLIENT_GONE/



=== TEST 7: the FIN comes with the request
--- p
gate=placed
--- steps
client request_and_end
nginx expect client prematurely closed connection
--- error_code: 0



=== TEST 8: a client that leaves takes all prompts of its list with it
--- p
gate=first
--- d
gate=first
--- request eval
'POST /v1/completions
{"model":"m","prompt":["' . 'x' x 300 . '","' . 'y' x 300 . '"]}'
--- steps
client request
worker d expect submit
worker d expect submit
client close
worker p expect /cancel request=[12] attempt=1 reason=CLIENT_GONE/
worker p expect /cancel request=[12] attempt=1 reason=CLIENT_GONE/



=== TEST 9: what a slow client has not read yet gathers in one event
--- cluster
worker {{m}};
--- worker
m text=a|b|c|d|e|f gate=first
--- config
location /v1/ { limit_rate 250; pd_pass chat; }
--- steps
client request
worker m expect submit
worker m release
client finish
client expect "text":"a"
client expect /"text":"[b-f]{2,}"/
client expect "finish_reason":"stop"
client expect [DONE]
--- timeout: 10



=== TEST 10: beyond pd_stream_buffer it is ended with an error
--- cluster
worker {{m}};
--- worker eval
'm gate=finish text=' . CORE::join('|', ('x' x 60000) x 200)
--- request
POST /v1/completions
{"model":"m","prompt":"hi","stream":true,"max_tokens":1000}
--- config
location /v1/ { pd_stream_buffer 1k; pd_pass chat; }
--- steps
client request
worker m expect /cancel request=1 attempt=1 reason=FINISHED_ELSEWHERE/
client finish
client expect "code":"client_too_slow"}}
client lacks DONE
--- error_log
More than 1024 bytes of the answer wait for the client to read them



=== TEST 11: a client that reads nothing for send_timeout is gone
--- cluster
worker {{m}};
--- worker eval
'm gate=finish text=' . CORE::join('|', ('x' x 60000) x 200)
--- request
POST /v1/completions
{"model":"m","prompt":"hi","stream":true,"max_tokens":1000}
--- config
location /v1/ { send_timeout 200ms; pd_stream_buffer 32m; pd_pass chat; }
--- steps
client request
nginx expect client timed out
worker m expect /cancel request=1 attempt=1 reason=CLIENT_GONE/
--- timeout: 10



=== TEST 12: a slow client gets everything
--- cluster
worker {{m}};
--- worker eval
'm text=' . CORE::join('|', map { "<$_>" . 'x' x 10000 . "</$_>" } 0 .. 39)
--- request
POST /v1/completions
{"model":"m","prompt":"hi","stream":true,"max_tokens":1000}
--- config
location /v1/ { limit_rate 200k; pd_stream_buffer 1m; pd_pass chat; }
--- response_body_like eval
CORE::join '.*', map { "<$_>x{10000}</$_>" } 0 .. 39
--- timeout: 10
