# What a worker is charged with: what it reports and what it was sent since,
# each request once, for as long as the worker has to do with it.

use Test::Nginx::Socket 'no_plan';

add_block_preprocessor(sub {
    my ($block) = @_;

    my $prompt = $block->name =~ /long/ ? 'x' x 1600 : 'hello';

    $block->set_value(config => 'location /v1/ { pd_pass chat; }');
    defined $block->request
        or $block->set_value(request => <<"END");
POST /v1/completions
{"model":"m","prompt":"$prompt","stream":true,"max_tokens":8}
END
    defined $block->http_config
        or $block->set_value(http_config => <<"END");
pd_zone pd:1m;
pd_cluster chat {
    worker {{p0}} role=prefill;
    worker {{p1}} role=prefill;
    worker {{d0}} role=decode;
}
END
});

run_tests();

__DATA__

=== TEST 1: a request that the report includes is charged once
--- worker
p0 role=prefill prompt=400 report=50
p1 role=prefill busy=600
d0 role=decode gate=finish
--- steps
worker p0 expect heartbeat
client1 request
worker p0 expect submit request=1
sleep 0.3
client2 request
worker p0 expect submit request=2
worker d0 release
worker d0 release
client1 expect t2
client2 expect t2
--- no_worker_log
p1 submit



=== TEST 2: and a long one that it does not include is charged all the same
--- worker
p0 role=prefill gate=placed report=0
p1 role=prefill busy=300
d0 role=decode
--- steps
worker p1 expect heartbeat
client1 request
worker p0 expect submit request=1
client2 request
worker p1 expect submit request=2
client2 expect t2
worker p0 release
client1 expect t2



=== TEST 3: whichever process hears the report, it counts for all
--- workers: 2
--- worker
p0 role=prefill gate=first prompt=400 report=50 report_slot=1
p1 role=prefill busy=600
d0 role=decode gate=finish
--- steps
worker p0 expect /attach [^\n]*slot=0.*attach [^\n]*slot=1|attach [^\n]*slot=1.*attach [^\n]*slot=0/
worker p0 expect heartbeat
client1 connect 0
client1 request
worker d0 expect submit request=1
sleep 0.3
client2 connect 1
client2 request
worker d0 expect submit request=1
worker d0 release
worker d0 release
client1 expect t2
client2 expect t2
--- no_worker_log
p1 submit



=== TEST 4: a report that is older than the last one changes nothing
--- worker
p0 role=prefill send=stale report=0
p1 role=prefill busy=300
d0 role=decode
--- steps
worker p0 expect heartbeat
client request
worker p1 expect submit
client expect t2
--- no_worker_log
p0 submit



=== TEST 5: one at a time: prefill load ends at the hand-off
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{p0}} max_streams=1; worker {{d0}}; }
--- worker
p0 role=prefill
d0 role=decode gate=token
--- steps
client1 request
client1 expect t0
client2 request
worker p0 expect submit request=2
client2 expect t0
client1 lacks t1
client2 close
client1 close



=== TEST 6: one at a time: decode load ends with the last token, not before
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{p0}}; worker {{d0}} max_streams=1; }
--- worker
p0 role=prefill
d0 role=decode gate=finish
--- steps
client1 request
client1 expect t1
client2 request
sleep 0.3
worker p0 lacks submit request=2
worker d0 release
client1 expect t2
worker p0 expect submit request=2
worker d0 release
client2 expect t2



=== TEST 7: one at a time: a client that leaves takes its load along
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{p0}} max_streams=1; worker {{d0}} max_streams=1; }
--- worker
p0 role=prefill gate=first
d0 role=decode gate=first
--- steps
client1 request
worker d0 expect submit request=1
client2 request
sleep 0.2
worker p0 lacks submit request=2
client1 close
worker d0 expect submit request=2
worker d0 release
client2 expect t2



=== TEST 8: one at a time: a prefill worker that dies behind the hand-off is free again
--- http_config
pd_zone pd:1m;
pd_cluster chat { worker {{p0}} max_streams=1; worker {{d0}}; }
--- worker
p0 role=prefill gate=first
d0 role=decode gate=finish
--- steps
client1 request
client1 expect t1
worker p0 kill
nginx expect lost worker
worker p0 start
nginx expect attached to worker
client2 request
worker p0 expect submit request=2
client1 lacks t2
worker d0 release
client1 expect t2



=== TEST 9: a worker that refuses for want of room is full until it reports
--- worker
p0 role=prefill refuse=CAPACITY:1 report=0
p1 role=prefill busy=10000
d0 role=decode
--- steps
sleep 0.1
client1 request
worker p0 expect submit request=1
worker p1 expect submit request=1
client1 expect t2
client2 request
client2 expect t2
worker p1 expect submit request=2
--- no_worker_log
p0 submit request=2



=== TEST 10: what processes of before a reload have sent counts for those of after it, a long prompt
--- workers: 1
--- worker
p0 role=prefill gate=placed report=0
p1 role=prefill busy=300
d0 role=decode
--- steps
nginx expect attached
nginx expect attached
nginx expect attached
worker p1 expect heartbeat
client1 request
worker p0 expect submit request=1
nginx reload
nginx expect attached
nginx expect attached
nginx expect attached
client2 request
worker p1 expect submit
client2 expect t2
worker p0 release
client1 expect t2
nginx expect /exited with code 0/
client3 request
worker p0 expect /generation=2.*submit/
worker p0 release
client3 expect t2



=== TEST 11: what a decode worker leaves to running answers is not free
--- worker
p0 role=prefill
p1 role=prefill
d0 role=decode gate=finish blocks=100 growth=97
--- steps
client1 request
client1 expect t1
client2 request
sleep 0.2
worker d0 lacks submit request=2
worker d0 release
worker d0 expect submit request=2
worker d0 release
client2 expect t2



=== TEST 12: and fills it
--- http_config
pd_zone pd:1m;
pd_cluster chat {
    worker {{p0}} role=prefill;
    worker {{d0}} role=decode;
    worker {{d1}} role=decode;
}
--- worker
p0 role=prefill
d0 role=decode growth=500
d1 role=decode growth=10
--- steps
worker d0 expect heartbeat
worker d1 expect heartbeat
client request
client expect t2
client2 request
client2 expect t2
worker d1 expect submit request=2
--- no_worker_log
d0 submit
