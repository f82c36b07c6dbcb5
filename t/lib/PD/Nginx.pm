package PD::Nginx;

# An nginx of a test's own: its folder, its processes, the signals they get.
# The configuration is the caller's affair: {root}/nginx.conf is there before it
# starts, with {port} and, as {master} and {daemon} say, with processes and in
# the background.

use strict;
use warnings;

use Exporter qw(import);
use IO::Socket::INET;
use POSIX qw(:sys_wait_h);
use Time::HiRes qw(time sleep);

our @EXPORT_OK = qw(free_port read_file write_file);

my %ports = (next => 0);

# top, build: trees; root: its folder; timeout: seconds that a step may take;
# leave: those that it may take to leave.
sub new {
    my ($class, %nginx) = @_;

    return bless { %nginx, port => free_port() }, $class;
}

sub log {
    my ($self) = @_;

    return read_file("$self->{root}/logs/error.log");
}

sub binary {
    my ($self) = @_;

    my $own = "$self->{build}/nginx/objs/nginx";
    return $ENV{PD_TEST_NGINX} || (-x $own ? $own : '/usr/sbin/nginx');
}

sub command {
    my ($self) = @_;

    return ($self->binary, '-p', "$self->{root}/",
            '-c', "$self->{root}/nginx.conf",
            '-e', "$self->{root}/logs/error.log");
}

# In a child that becomes nginx: a dynamic module and nginx both define
# ngx_module_names, and nginx frees nothing of its own as it leaves.
sub sanitized {
    $ENV{ASAN_OPTIONS} = 'detect_odr_violation=0:detect_leaks=0:'
                         . ($ENV{ASAN_OPTIONS} || '');
    $ENV{UBSAN_OPTIONS} = 'print_stacktrace=0';
}

sub spawn {
    my ($self) = @_;

    my $root = $self->{root};

    $self->{pid} = fork // die "cannot fork: $!\n";
    return if $self->{pid};

    sanitized();
    open(STDIN, '<', '/dev/null');
    open(STDOUT, '>', "$root/logs/stdout.log");
    open(STDERR, '>', "$root/logs/stderr.log");
    exec($self->command) or POSIX::_exit(127);
}

sub start {
    my ($self) = @_;

    $self->spawn;

    my $deadline = time + 10;

    if ($self->{daemon}) {
        waitpid $self->{pid}, 0;
        return 0 if $?;
        # It is the child that writes the file, maybe behind its parent's end.
        sleep 0.005 until ($self->{pid} = $self->pid_file) || time > $deadline;
    }

    while (time < $deadline) {
        return 0 if $self->wait_exit(0);
        return 1 if $self->listens_to_signals
            && IO::Socket::INET->new(PeerAddr => "127.0.0.1:$self->{port}");
        sleep 0.005;
    }

    kill 'KILL', $self->{pid};
    return 0;
}

# "nginx -t" beside it; false if it fails, or if a file is another one then.
sub test {
    my ($self) = @_;

    my $root = $self->{root};
    my $files = sub { join '', map { "$_: " . read_file($_) . "\n" }
                               glob "$root/*" };
    my $before = $files->();

    my $pid = fork // die "cannot fork: $!\n";

    if ($pid == 0) {
        sanitized();
        exec($self->command, '-t', '-q') or POSIX::_exit(127);
    }

    waitpid $pid, 0;

    return $? == 0 && $files->() eq $before;
}

# A master that has not begun to start its processes may lose a signal.
sub listens_to_signals {
    my ($self) = @_;

    my $pid = $self->{pid};

    return !$self->{master}
           || read_file("/proc/$pid/task/$pid/children") =~ /\d/;
}

sub wait_exit {
    my ($self, $seconds) = @_;

    if ($self->{daemon}) {
        $self->wait_end($self->{pid}, $seconds) or return 0;
        $self->{status} = 0;    # nobody knows: its log has to say
        return 1;
    }

    my $deadline = time + $seconds;

    until (waitpid($self->{pid}, WNOHANG)) {
        return 0 if time >= $deadline;
        sleep 0.005;
    }

    $self->{status} = $?;
    return 1;
}

# Of a process that is no child of ours.
sub wait_end {
    my ($self, $pid, $seconds) = @_;

    my $deadline = time + $seconds;

    until (read_file("/proc/$pid/stat") !~ /^\d+ \(.*\) [^Z]/) {
        return 0 if time >= $deadline;
        sleep 0.005;
    }

    return 1;
}

sub pid_file {
    my ($self) = @_;

    return read_file("$self->{root}/logs/nginx.pid") =~ /^(\d+)/ ? $1 : 0;
}

# The new master is "nginx" from here on, the other one "old".
sub upgrade {
    my ($self) = @_;

    my $deadline = time + $self->{timeout};

    $self->{old} = $self->{pid};
    kill 'USR2', $self->{old};

    while (time < $deadline) {
        $self->{pid} = $self->pid_file || $self->{old};
        return 1 if $self->{pid} != $self->{old} && $self->listens_to_signals;
        sleep 0.005;
    }

    return 0;
}

# The new master has gone again.
sub back {
    my ($self) = @_;

    $self->wait_end($self->{pid}, $self->{timeout}) or return 0;

    $self->{pid} = delete $self->{old};
    return 1;
}

sub restart {
    my ($self) = @_;

    kill 'TERM', $self->{pid};
    $self->wait_exit($self->{timeout}) or return 0;
    delete $self->{status};

    return $self->start;
}

# Why it did not end as it should, or ''.
sub stop {
    my ($self) = @_;

    if ($self->{left} || $self->wait_exit(0)) {
        return '' if $self->{left} && $self->{status} == 0;
        return "it has died: status $self->{status}";
    }

    kill 'QUIT', $self->{pid};

    if (!$self->wait_exit($self->{leave})) {
        kill 'TERM', $self->{pid};
        $self->wait_exit(1) or kill 'KILL', $self->{pid};
        return 'it does not leave when asked to';
    }

    return $self->{status} ? "status $self->{status}" : '';
}

sub DESTROY {
    my ($self) = @_;

    return if !$self->{pid} || exists $self->{status};

    local $?;
    kill 'KILL', $self->{pid};
    kill 'KILL', $self->{old} if $self->{old};
}

# --- its processes and its log -----------------------------------------------

# The nginx worker processes that have been started, in this order.
sub children {
    my ($self) = @_;

    return $self->log =~ /start worker process (\d+)/g;
}

# The nginx worker process that is named, or the newest.
sub kill_child {
    my ($self, $pid) = @_;

    $pid //= ($self->children)[-1];
    $self->{harmed} = time;

    return $pid && kill 'KILL', $pid;
}

# Arms a trap for the newest worker process: see t/lib/kill_inside.py.
sub kill_inside {
    my ($self, $function, $times) = @_;

    my $pid = ($self->children)[-1];

    open($self->{trap}, '-|', "$self->{top}/build/venv/bin/python",
         "$self->{top}/t/lib/kill_inside.py", $pid,
         "$self->{build}/ngx_http_pd_module.so", $function, $times // 1)
        or die "cannot run kill_inside.py: $!\n";

    my $line = readline $self->{trap};
    return 1 if defined $line && $line eq "armed\n";

    close $self->{trap};
    die "kill_inside.py: status $?\n" unless $? >> 8 == 77;

    # no tracing on this machine: a death at any other moment has to do
    undef $self->{trap};
    return kill 'KILL', $pid;
}

sub killed_inside {
    my ($self) = @_;

    return 1 unless $self->{trap};

    my $line = readline $self->{trap};
    return close($self->{trap}) && defined $line && $line eq "killed\n";
}

# The process that has accepted the connection from the port, or any one.
sub accepted_by {
    my ($self, $port) = @_;

    my $here = sprintf '%04X', $self->{port};
    my $there = defined $port ? sprintf('%04X', $port) : '\w+';
    my %inode = map { $_ => 1 }
                map { /^\s*\d+: \S+:$here \S+:$there 01 (?:\S+ +){5}(\d+)/
                      ? $1 : () }
                split /\n/, read_file('/proc/net/tcp');

    for my $pid ($self->children) {
        for my $fd (glob "/proc/$pid/fd/*") {
            my $link = readlink $fd // next;
            return $pid if $link =~ /^socket:\[(\d+)\]$/ && $inode{$1};
        }
    }

    return 0;
}

# Waits for a line behind what was expected before.
sub expect_log {
    my ($self, $re) = @_;

    my $deadline = time + $self->{timeout};

    while (1) {
        my $log = $self->log;
        pos($log) = $self->{seen} // 0;
        if ($log =~ /$re/g) {
            $self->{seen} = pos $log;
            return 1;
        }
        return 0 if time > $deadline;
        sleep 0.005;
    }
}

# --- ports and files ---------------------------------------------------------

# Below the ports that the system gives to who asks for any, and of this process
# alone, which holds the first of its 64: suites run beside each other, and a port
# is used only some time after it has been found free.
sub free_port {
    for my $first (map { 16000 + 64 * $_ } 0 .. 249) {
        last if $ports{held};
        $ports{held} = IO::Socket::INET->new(LocalAddr => "127.0.0.1:$first",
                                             Listen => 1);
        $ports{first} = $first;
    }

    for (1 .. 63) {
        my $port = $ports{first} + 1 + $ports{next}++ % 63;

        return $port if IO::Socket::INET->new(LocalAddr => "127.0.0.1:$port",
                                              Listen => 1, ReuseAddr => 1);
    }

    die "no free port\n";
}

sub read_file {
    my ($path) = @_;

    open(my $file, '<', $path) or return '';
    local $/;
    return <$file> // '';
}

sub write_file {
    my ($path, $text) = @_;

    open(my $file, '>', $path) or die "$path: $!\n";
    print $file $text;
    close $file;
}

1;
