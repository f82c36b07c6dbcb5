package PD::Client;

# One HTTP/1.1 client on a plain socket, that can be stopped in the middle of
# anything: it sees an event when it has arrived, not when the answer is whole.

use strict;
use warnings;

use IO::Select;
use IO::Socket::INET;
use Socket qw(SHUT_WR SOL_SOCKET SO_LINGER);
use Time::HiRes qw(time sleep);

use constant MSG_MORE => 0x8000;

sub new {
    my ($class, $port, $timeout) = @_;

    my $socket = IO::Socket::INET->new(PeerAddr => "127.0.0.1:$port",
                                       Timeout => $timeout)
        or die "cannot connect to port $port: $!\n";

    $socket->autoflush(1);

    return bless { socket => $socket, timeout => $timeout, raw => '',
                   seen => 0, eof => 0 }, $class;
}

# Text of a request from a "--- request" section: the request line, then the
# body; or the whole of it in a raw request.
sub request_text {
    my ($request, $headers) = @_;

    my ($line, $body) = split /\n/, $request, 2;
    $line =~ m{ HTTP/1\.\d$} or $line .= ' HTTP/1.1';

    my $text = "$line\r\nHost: localhost\r\n";
    $text .= "Connection: close\r\n" unless $headers =~ /^Connection:/mi;

    if (defined $body) {
        chomp $body;
        $text .= 'Content-Length: ' . length($body) . "\r\n"
            unless $headers =~ /^(Content-Length|Transfer-Encoding):/mi;
    }

    $text .= join('', map { "$_\r\n" } grep { /\S/ } split /\r?\n/, $headers);

    return "$text\r\n" . ($body // '');
}

sub send {
    my ($self, @pieces) = @_;

    local $SIG{PIPE} = 'IGNORE';

    for my $piece (@pieces) {
        my $sent = 0;
        while ($sent < length $piece) {
            my $n = syswrite($self->{socket}, $piece, length($piece) - $sent,
                             $sent);
            return unless defined $n;    # the server may have answered early
            $sent += $n;
        }
        sleep 0.05 if @pieces > 1;
    }
}

# The last piece and the end of what this side says, in one segment.
sub send_and_end {
    my ($self, $text) = @_;

    CORE::send($self->{socket}, $text, MSG_MORE);
    shutdown($self->{socket}, SHUT_WR);
}

# Reads once; false at the deadline.
sub pull {
    my ($self, $deadline) = @_;

    return 0 if $self->{eof};

    my $left = $deadline - time;
    return 0 if $left <= 0
                || !IO::Select->new($self->{socket})->can_read($left);

    my $n = sysread($self->{socket}, $self->{raw}, 65536,
                    length $self->{raw});
    $self->{eof} = 1 unless $n;

    return 1;
}

# Waits until $text (or what the regular expression says) has arrived behind
# what was expected before.
sub expect {
    my ($self, $text, $timeout) = @_;

    my $deadline = time + ($timeout // $self->{timeout});
    my $re = ref $text ? $text : qr/\Q$text\E/;

    while (1) {
        my $body = $self->arrived;
        pos($body) = $self->{seen};

        if ($body =~ /$re/g) {
            $self->{seen} = pos $body;
            return 1;
        }

        $self->pull($deadline) or return 0;
    }
}

# Everything until the answer is complete.
sub finish {
    my ($self, $timeout) = @_;

    my $deadline = time + ($timeout // $self->{timeout});

    until ($self->complete) {
        $self->pull($deadline) or last;
    }

    return $self->complete;
}

sub header {
    my ($self) = @_;

    return $self->{raw} =~ /^(.*?\r\n)\r\n/s ? $1 : undef;
}

sub status {
    my ($self) = @_;

    return ($self->header // '') =~ m{^HTTP/1\.\d (\d+)} ? $1 : 0;
}

# The body as far as it has arrived, without its chunks' lines.
sub arrived {
    my ($self) = @_;

    my $header = $self->header // return '';
    my $rest = substr($self->{raw}, length($header) + 2);

    return $rest unless $header =~ /^Transfer-Encoding:\s*chunked/mi;

    my $body = '';
    while ($rest =~ s/^([0-9a-fA-F]+)[^\r\n]*\r\n//) {
        my $size = hex $1;
        if ($size == 0) {
            $self->{last_chunk} = 1;
            last;
        }
        $body .= substr($rest, 0, $size);
        last if length $rest < $size + 2;
        substr($rest, 0, $size + 2) = '';
    }

    return $body;
}

sub complete {
    my ($self) = @_;

    return 1 if $self->{eof};

    my $header = $self->header // return 0;
    return 0 if $header =~ m{^HTTP/1\.1 1\d\d};

    my $body = $self->arrived;
    return $self->{last_chunk} if $header =~ /^Transfer-Encoding:/mi;

    return $header =~ /^Content-Length:\s*(\d+)/mi && length $body >= $1;
}

# A reset in place of a FIN.
sub reset {
    my ($self) = @_;

    setsockopt($self->{socket}, SOL_SOCKET, SO_LINGER, pack('ii', 1, 0));
    $self->close;
}

sub close {
    my ($self) = @_;

    $self->{socket}->close;
    $self->{eof} = 1;
}

1;
