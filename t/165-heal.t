# An nginx process dies while it holds the lock of the shared zone, in the middle
# of an update: the next one finds everything in order.

use Test::Nginx::Socket 'no_plan';

add_block_preprocessor(sub {
    my ($block) = @_;

    $block->set_value(workers => 1);
    $block->set_value(http_config => <<'END');
pd_zone pd:1m;
pd_cluster chat { worker {{m0}} max_streams=2; queue 10 timeout=20s; }
END
    $block->set_value(config => 'location /v1/ { pd_pass chat; }');
    $block->set_value(request => <<'END');
POST /v1/completions
{"model":"m","prompt":"hello","stream":true}
END
    $block->set_value(worker => "m0 gate=finish\n");
    my $inside = $block->inside;
    chomp $inside;

    # two run, two wait, and the process dies; then two run and one waits
    $block->set_value(steps => <<"END");
worker m0 expect attach
client5 request
client5 expect t1
client6 request
client6 expect t1
nginx kill_inside $inside
client7 request
sleep 0.3
client8 request
sleep 0.1
client5 close
nginx killed
client7 close
client8 close
worker m0 expect detach
worker m0 expect attach
sleep 0.3
client request
client expect t1
client2 request
client2 expect t1
client3 request
sleep 0.2
client3 lacks t0
worker m0 release
worker m0 release
client expect t2
client2 expect t2
client3 expect t1
worker m0 release
client3 expect t2
END
    $block->set_value(ignore_log => <<"END");
exited on signal 9
was locked by
END
});

run_tests();

__DATA__

=== TEST 1: in the middle of a sum
--- inside: ngx_http_pd_load_charge+2



=== TEST 2: in the middle of another sum
--- inside: ngx_http_pd_load_charge+2 2



=== TEST 3: while it chooses workers
--- inside: ngx_http_pd_choose



=== TEST 4: after it has granted, before it has told
--- inside: ngx_http_pd_slot_wake



=== TEST 5: while it ends a request
--- inside: ngx_http_pd_ledger_run_cluster
