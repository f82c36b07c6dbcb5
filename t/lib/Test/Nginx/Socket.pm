package Test::Nginx::Socket;

# Runs the blocks of a .t file in Test::Nginx's format: each block is an nginx
# of its own, in the foreground on a free port, with its files under
# $PD_BUILD/t/nginx/. Sections as in Test::Nginx:
#
#   main_config http_config config   request raw_request more_headers
#   response_body response_body_like response_headers response_headers_like
#   error_code
#   error_log no_error_log must_die timeout abort wait log_level
#
# Sections of our own:
#
#   workers         number of nginx worker processes; 0 (default): no master
#   worker          fake workers, one a line: NAME key=value ...; in this and
#                   in the configuration {{NAME}} is a worker's address, {{port}}
#                   nginx's own port, {{root}} its folder, and {{ANYTHING}} an
#                   address at which nobody listens yet ({{ANYTHING:port}}: its port)
#   worker_log      regular expressions, one a line, that come in this order in
#   no_worker_log   ..., or never, in the logs of all workers: "NAME event"
#   reload_config reload_http_config
#                   the configuration after "nginx reload"
#   more_headers_NAME
#                   the headers of client NAME, in place of more_headers
#   daemon          nginx goes into the background, so that "nginx upgrade" can
#                   start a new binary beside the old one (workers: 1 or more)
#   worker_connections
#                   of each nginx worker process (256)
#   user_files      files below {{root}}: a line ">>> NAME", then the text
#   reload_user_files
#                   those that are written before "nginx reload"; "nginx test"
#                   asks "nginx -t" about all these, and fails if a file is
#                   another one then
#   ignore_log      alarming lines of nginx's log that are no fault here
#   {{root}}/tls/   in the configuration: host.pem and host.key are made there
#   steps           what happens, one step a line (see %step below); where there
#                   are none: send the request, read the answer
#
# A block fails if nginx logs an [alert], [crit] or [emerg], if a sanitizer
# speaks, or if nginx does not leave within seconds when it is asked to.
#
# PD_BUILD names the built tree, PD_TEST_NGINX the nginx to test.

use strict;
use warnings;

use Cwd qw(abs_path);
use File::Basename qw(basename dirname);
use File::Path qw(make_path remove_tree);
use Test::Base;
use Time::HiRes qw(time sleep);

use PD::Client;
use PD::Nginx qw(free_port read_file write_file);
use PD::Workers;

our @EXPORT = qw(plan blocks run_tests repeat_each no_shuffle no_long_string
                 log_level timeout add_block_preprocessor);

my $top = abs_path(dirname(__FILE__) . '/../../../..');
my $build = abs_path($ENV{PD_BUILD} || "$top/build")
    or die "no built tree $ENV{PD_BUILD}\n";
my $repeat = 1;
my $level = 'info';
my $timeout = 5 * ($ENV{PD_TEST_SLOW} || 1);
my ($workers, $nginx, @preprocessors);

# As Test::Nginx::Socket: "use" may carry the plan.
sub import {
    my ($class, @plan) = @_;

    Test::More->builder->plan(@plan) if @plan;
    no strict 'refs';
    *{ caller() . "::$_" } = \&$_ for @EXPORT;
}

sub repeat_each    { $repeat = shift if @_; return $repeat }
sub log_level      { $level = shift if @_; return $level }
sub timeout        { $timeout = shift if @_; return $timeout }
sub add_block_preprocessor { push @preprocessors, @_ }
sub no_shuffle     { }
sub no_long_string { }

sub run_tests {
    for my $block (blocks()) {
        $_->($block) for @preprocessors;
        run_block($block) for 1 .. $repeat;
    }
    undef $workers;
}

sub run_block {
    my ($block) = @_;

    my $name = $block->name;
    my $root = "$build/t/nginx/" . basename($0, '.t') . "-$$";
    remove_tree($root);
    make_path("$root/logs", "$root/temp");

    $nginx = PD::Nginx->new(top => $top, build => $build, root => $root,
                            timeout => $block->timeout // $timeout,
                            leave => $timeout);
    make_certificate($root) if ($block->http_config // '') =~ m{/tls/};
    start_workers($block, $root) if defined $block->worker;
    write_files($block->user_files);
    write_configuration($block, scalar $block->config,
                        scalar $block->http_config);

    if (defined $block->must_die) {
        $nginx->spawn;
        ok($nginx->wait_exit($timeout) && $nginx->{status},
           "$name - nginx refuses");

    } elsif ($nginx->start) {
        my %client = eval { run_steps($block) };
        fail("$name - $@") if $@;
        check_answer($block, $client{client}) if $client{client};
        sleep $block->wait if defined $block->wait;
        $_->close for values %client;
        is($nginx->stop, '', "$name - nginx ends well");

    } else {
        fail("$name - nginx starts");
        diag($nginx->log);
    }

    check_workers($block) if defined $block->worker;
    check_logs($block);
    $workers->stop_all if $workers;
    remove_tree($root) unless $ENV{PD_TEST_KEEP};
}

# --- the answer, the logs ----------------------------------------------------

sub check_answer {
    my ($block, $client) = @_;

    my $name = $block->name;

    if (!defined $block->abort) {
        ok($client->finish($nginx->{timeout}), "$name - the answer is complete")
            or return diag($client->{raw});
        is($client->status, $block->error_code // 200, "$name - status");
    }

    my $body = $client->arrived;

    is($body, $block->response_body, "$name - body")
        if defined $block->response_body;

    if (defined(my $like = $block->response_body_like)) {
        chomp $like unless ref $like;
        like($body, ref $like ? $like : qr/$like/s, "$name - body");
    }

    for my $line (split /\n/, $block->response_headers // '') {
        my ($header, $value) = $line =~ /^(\S+?):\s*(.*)$/ or next;
        my ($got) = $client->header =~ /^\Q$header\E:\s*(.*?)\r$/mi;
        is($got // '', $value, "$name - header $header");
    }

    for my $line (split /\n/, $block->response_headers_like // '') {
        my ($header, $value) = $line =~ /^(\S+?):\s*(.*)$/ or next;
        my ($got) = $client->header =~ /^\Q$header\E:\s*(.*?)\r$/mi;
        like($got // '', qr/^$value$/, "$name - header $header");
    }
}

sub patterns {
    my ($section) = @_;

    return () unless defined $section;
    return @$section if ref $section eq 'ARRAY';
    return $section if ref $section;
    return grep { /\S/ } split /\n/, $section;
}

sub check_logs {
    my ($block) = @_;

    my $name = $block->name;
    my $log = $nginx->log;
    my $output = read_file("$nginx->{root}/logs/stderr.log");

    for my $pattern (patterns($block->error_log)) {
        my $re = ref $pattern ? $pattern : qr/\Q$pattern\E/;
        ok($log =~ $re, "$name - logged: $pattern")
            or diag(join "\n", grep { !/\[debug\]/ } split /\n/, $log);
    }

    for my $pattern (patterns($block->no_error_log)) {
        my $re = ref $pattern ? $pattern : qr/\Q$pattern\E/;
        my ($line) = grep { $_ =~ $re } split /\n/, $log;
        is($line, undef, "$name - not logged: $pattern");
    }

    # nginx has undefined behaviour of its own, like memcpy(p, NULL, 0)
    my @bad = defined $block->must_die
        ? () : grep { /\[(alert|crit|emerg)\]/ } split /\n/, $log;
    for my $pattern (patterns($block->ignore_log)) {
        @bad = grep { $_ !~ /\Q$pattern\E/ } @bad;
    }
    push @bad, grep { m{ERROR: \w+Sanitizer|ngx_http_pd_.*runtime error:} }
               split /\n/, $log . $output;
    is(join("\n", @bad), '', "$name - nothing alarming is logged");
}

sub check_workers {
    my ($block) = @_;

    my $name = $block->name;
    my $deadline = time + $timeout;
    my ($log, $missing);

    # a worker may still be reading what nginx has sent at last
    do {
        sleep 0.01 if defined $missing;
        $log = worker_logs();
        $missing = missing_in($log, patterns($block->worker_log));
    } while (defined $missing && time < $deadline);

    is($missing, undef, "$name - worker log") or diag($log);

    for my $pattern (patterns($block->no_worker_log)) {
        unlike($log, qr/$pattern/m, "$name - not in a worker's log");
    }
}

sub worker_logs {
    return join '', map { my $worker = $_;
                          map { "$worker $_\n" }
                              split /\n/, $workers->log($worker) }
                    sort keys %{ $workers->{worker} };
}

# The first pattern that is not there behind the one before it.
sub missing_in {
    my ($log, @patterns) = @_;

    pos($log) = 0;

    for my $pattern (@patterns) {
        $log =~ /$pattern/mg or return $pattern;
    }

    return undef;
}

# --- steps -------------------------------------------------------------------

# A client's name begins with "client"; it sends the request of the block, or
# the section "request_NAME". PATTERN is plain text, or /a regular expression/.
my %step = (
    'client connect' => sub { connect_to(@_[1, 2, 3]) },
    'client request' => sub { my ($block, $client, $name) = @_;
                              $client->{$name} = new_client(
                                  $block, $name, 'send', $client->{$name});
                              1 },
    'client request_and_end' => sub { my ($block, $client, $name) = @_;
                                      $client->{$name} = new_client($block, $name,
                                                               'send_and_end'); 1 },
    'client expect'  => sub { $_[1]{$_[2]}->expect(pattern($_[3])) },
    'client finish'  => sub { $_[1]{$_[2]}->finish },
    'client close'   => sub { delete($_[1]{$_[2]})->close; 1 },
    'client reset'   => sub { delete($_[1]{$_[2]})->reset; 1 },
    'client status'  => sub { $_[1]{$_[2]}->status == $_[3] },
    'client header'  => sub { my ($name, $value) = split /:\s*/, $_[3], 2;
                              ($_[1]{$_[2]}->header // '')
                                  =~ /^\Q$name\E: \Q$value\E\r$/mi },
    'client lacks'   => sub { $_[1]{$_[2]}->arrived !~ pattern($_[3]) },
    'worker expect'  => sub { $workers->expect($_[2], pattern($_[3]),
                                               $nginx->{timeout}) },
    'worker lacks'   => sub { $workers->log($_[2]) !~ pattern($_[3]) },
    'worker release' => sub { $workers->release($_[2], $nginx->{timeout}) },
    'worker kill'    => sub { $workers->kill($_[2], 'KILL') },
    'worker stop'    => sub { $workers->kill($_[2], 'STOP') },
    'worker continue' => sub { $workers->kill($_[2], 'CONT') },
    'worker drain'   => sub { $workers->kill($_[2], 'HUP') },
    'worker leave'   => sub { $workers->kill($_[2], 'USR2') },
    'worker start'   => sub { $workers->start($_[2], defined $_[3]
                                  ? expand($_[3]) : undef,
                                  "$nginx->{root}/logs/$_[2].log");
                              $nginx->{harmed} = time },
    'nginx expect'   => sub { $nginx->expect_log(pattern($_[3])) },
    'nginx lacks'    => sub { $nginx->log !~ pattern($_[3]) },
    'nginx reload'   => sub { reload_nginx($_[0]) },
    'nginx child'    => sub { my ($signal, $index) = split ' ', $_[3];
                              kill $signal, ($nginx->children)[$index] },
    'nginx kill_child' => sub { $nginx->kill_child },
    'nginx kill_busy_child' => sub { $nginx->kill_child($nginx->accepted_by) },
    # what was expected since a child was killed, or a worker has started and
    # listens, has come within so many seconds
    'nginx healed_within' => sub { time - $nginx->{harmed}
                                   < $_[3] * ($ENV{PD_TEST_SLOW} || 1) },
    'nginx restart'  => sub { $nginx->restart },
    'nginx upgrade'  => sub { $nginx->upgrade },
    'nginx back'     => sub { $nginx->back },
    'nginx old'      => sub { kill $_[3], $nginx->{old} },
    'nginx old_exits' => sub { $nginx->wait_end($nginx->{old}, $nginx->{timeout}) },
    'nginx exits'    => sub { $nginx->wait_exit($nginx->{timeout})
                              && ($nginx->{left} = 1) },
    'nginx kill_inside' => sub { $nginx->kill_inside(split ' ', $_[3]) },
    'nginx killed'   => sub { $nginx->killed_inside },
    'nginx test'     => sub { write_next($_[0]); $nginx->test },
    'nginx signal'   => sub { kill $_[3], $nginx->{pid} },
    'nginx ask'      => sub { ask($_[0], split ' ', $_[3]) },
    'nginx burst'    => sub { burst($_[0], $_[3]) },
    'sleep'          => sub { sleep $_[3]; 1 },
);

sub run_steps {
    my ($block) = @_;

    my %client;
    my $steps = $block->steps
                // (defined $block->request || defined $block->raw_request
                    ? 'client request' : '');

    for my $line (grep { /\S/ } split /\n/, $steps) {
        my ($subject, $rest) = $line =~ /^\s*(client\w*|nginx|sleep)\s*(.*)$/
            ? ($1, $2)
            : $line =~ /^\s*worker (\w+)\s+(.*)$/ ? ($1, $2)
            : die "cannot read step \"$line\"\n";
        my $kind = $line =~ /^\s*(client|worker|nginx|sleep)/ ? $1 : '';
        my ($verb, $argument) = $kind eq 'sleep' ? ('', $rest)
                                : split(' ', $rest, 2);
        my $code = $step{ $kind . ($verb ? " $verb" : '') }
            or die "unknown step \"$line\"\n";

        next if $code->($block, \%client, $subject, $argument);

        fail($block->name . " - step: $line");
        diag($_->{raw}) for $client{$subject} || ();
        diag("$_: " . $workers->log($_)) for sort keys %{ ($workers
                                                 || {})->{worker} || {} };
        last;
    }

    return %client;
}

sub pattern {
    my ($text) = @_;

    return $text =~ m{^/(.*)/$} ? qr/$1/ms : qr/\Q$text\E/;
}

sub new_client {
    my ($block, $name, $send, $client) = @_;

    $client ||= PD::Client->new($nginx->{port}, $nginx->{timeout});
    $send ||= 'send';

    if (defined(my $raw = $block->raw_request)) {
        $client->send(ref $raw ? @$raw : $raw);

    } else {
        my ($section, $headers) = ("request_$name", "more_headers_$name");
        $client->$send(PD::Client::request_text(
            ($name ne 'client' && $block->$section) || $block->request,
            $block->$headers // $block->more_headers // ''));
    }

    if (defined $block->abort) {
        $client->finish($block->timeout // 0.2);
        $client->close;
    }

    return $client;
}

# A connection to the worker process that was started as number $index.
sub connect_to {
    my ($client, $name, $index) = @_;

    my $deadline = time + $nginx->{timeout};

    while (time < $deadline) {
        my $new = PD::Client->new($nginx->{port}, $nginx->{timeout});
        my $pid;

        until ($pid = $nginx->accepted_by($new->{socket}->sockport)) {
            sleep 0.005;
            return 0 if time > $deadline;
        }

        if ($pid == ($nginx->children)[$index]) {
            $client->{$name} = $new;
            return 1;
        }

        $new->close;
    }

    return 0;
}

# The block's request, or that of client NAME, COUNT times, one after the other;
# each ends with STATUS.
sub ask {
    my ($block, $count, $status, $name) = @_;

    for (1 .. $count) {
        my $client = new_client($block, $name // 'client');
        $client->finish($nginx->{timeout}) or return 0;
        $client->close;

        next if $client->status == $status;
        diag($client->{raw});
        return 0;
    }

    return 1;
}

# COUNT ... as t/lib/burst.py takes them; what it prints is in nginx's log.
sub burst {
    my ($block, $arguments) = @_;

    my ($count, $rest) = split ' ', $arguments, 2;
    my @command = ("$top/build/venv/bin/python", "$top/t/lib/burst.py",
                   $nginx->{port}, $count, split ' ', $rest // '');
    open(my $burst, '-|', @command) or die "cannot run burst.py: $!\n";
    my $result = join '', <$burst>;
    close $burst;
    my $well = $? == 0;

    open(my $log, '>>', "$nginx->{root}/logs/error.log") or die $!;
    print $log "burst: $result";
    close $log;
    diag("burst: $result") unless $well;

    return $well;
}

# --- processes ---------------------------------------------------------------

# One for both sides, which is also who has signed it.
sub make_certificate {
    my ($root) = @_;

    make_path("$root/tls");
    system("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256"
           . " -nodes -subj /CN=host -addext subjectAltName=IP:127.0.0.1"
           . " -keyout $root/tls/host.key -out $root/tls/host.pem"
           . " 2>/dev/null") == 0 or die "openssl cannot make a certificate\n";
}

sub start_workers {
    my ($block, $root) = @_;

    $workers ||= PD::Workers->new($top, $build);

    for my $line (grep { /\S/ } split /\n/, $block->worker) {
        my ($name, $options) = split ' ', $line, 2;
        $workers->start($name, expand($options // ''), "$root/logs/$name.log");
    }
}

sub write_files {
    my ($files) = @_;

    my (undef, %text) = split /^>>> (\S+)\n/m, $files // '', -1;
    write_file("$nginx->{root}/$_", expand($text{$_} // '')) for keys %text;
}

sub write_configuration {
    my ($block, $config, $http) = @_;

    $config //= '';
    $http //= '';

    my $root = $nginx->{root};
    my $processes = $block->workers // 0;
    my $master = $processes ? 'on' : 'off';
    my $daemon = defined $block->daemon ? 'on' : 'off';
    $nginx->{daemon} = defined $block->daemon;
    $nginx->{master} = $processes;
    my $user = $processes && $> == 0 ? 'user root;' : '';
    my $main = $block->main_config // '';
    $main .= "\nenv ASAN_OPTIONS;\nenv UBSAN_OPTIONS;\n" if $nginx->{daemon};
    my $temp = join '', map { "    ${_}_temp_path $root/temp/$_;\n" }
                        qw(proxy fastcgi uwsgi scgi client_body);
    $processes ||= 1;
    my $connections = $block->worker_connections // 256;
    my $log = $block->log_level // $level;
    chomp $log;

    my $text = <<"END";
load_module $build/ngx_http_pd_module.so;
daemon $daemon;
master_process $master;
worker_processes $processes;
$user
error_log $root/logs/error.log $log;
pid $root/logs/nginx.pid;
$main
events {
    worker_connections $connections;
}
http {
    access_log $root/logs/access.log;
    default_type text/plain;
$temp
$http
    server {
        listen 127.0.0.1:{{port}};
        server_name localhost;
$config
    }
}
END

    write_file("$root/nginx.conf", expand($text));
}

# {{port}}, {{root}}, and the addresses of workers; any other name is an
# address at which nobody listens yet.
sub expand {
    my ($text) = @_;

    my $value = sub {
        my ($name) = @_;
        return $nginx->{$name} if $name eq 'port' || $name eq 'root';
        my $worker = ($workers || {})->{worker}{$name};
        return '127.0.0.1:' . ($worker ? $worker->{port}
                                       : $nginx->{free}{$name} ||= free_port());
    };

    $text =~ s/\{\{(\w+)\}\}/$value->($1)/ge;
    $text =~ s/\{\{(\w+):port\}\}/$value->($1) =~ s{.*:}{}r/ge;

    return $text;
}

# The files and the configuration of after "nginx reload".
sub write_next {
    my ($block) = @_;

    write_files($block->reload_user_files);
    write_configuration($block, $block->reload_config // $block->config,
                        $block->reload_http_config // $block->http_config);
}

sub reload_nginx {
    my ($block) = @_;

    write_next($block);

    return kill 'HUP', $nginx->{pid};
}

1;
