#!/bin/sh
# # Installs firebird-cdc @VERSION@, with its own Python, on x86-64 Linux with glibc @GLIBC@ or newer. ' # " # `
trap 'echo "firebird-cdc: $0 is damaged, nothing was changed: copy it again"; exit 1' EXIT
# The digest of all other lines and of the archive behind them:
sum='@SUM@'
# It is compared before the shell reads what follows, and main does so once more, should a flipped
# byte have spared us the comparison; the trap speaks where it leaves no shell script. The quotes in
# the second line end what a flipped first byte would begin.
set -eu
found=$({ sed -n '1,4p;5q' "$0"; tail -n+6 "$0"; } | sha256sum)
[ "${found%% *}" = "$sum" ] || {
    echo "firebird-cdc: $0 is damaged (or sha256sum is missing), nothing was changed: copy it again"
    exit 1
}
trap - EXIT
umask 022

version=@VERSION@
lines=@LINES@
kilobytes=@KILOBYTES@
addons='@ADDONS@'
usual=/opt/firebird-cdc
prefix=$usual
server=
with_server=yes
link=/usr/local/bin/firebird-cdc

usage() {
    cat <<END
usage: sh $0 COMMAND [--prefix FOLDER] [--server ROOT | --no-server] [-- OPTION...]

  install    unpack version $version beside others, and put the plugin into the server
  upgrade    unpack it, and put it to use for all servers that have the plugin
  uninstall  take the plugin out of all servers, and all of firebird-cdc away; what is not
             delivered stays, and is named
  verify     tell whether this file is whole, and do nothing

  --prefix FOLDER  where versions are (default: $prefix)
  --server ROOT    the server's folder, if there are several or it is not found
  --no-server      install: unpack, and leave servers as they are
  -- OPTION...     for firebird-cdc install, or upgrade; see firebird-cdc install --help

No network, Python or compiler is needed. A run that was cut off is completed by the next one.
END
}

fail() {
    echo "firebird-cdc: $*" >&2
    exit 1
}

say() {
    echo "$*"
}

supported() {
    [ "$(uname -s) $(uname -m)" = "Linux x86_64" ] ||
        fail "this is for Linux on x86-64, and this machine is $(uname -s) on $(uname -m)"
    have=$(getconf GNU_LIBC_VERSION 2>/dev/null || true)
    have=${have#glibc }
    [ "${have%%.*}" = 2 ] && [ "${have#2.}" -ge "${wanted_glibc#2.}" ] 2>/dev/null ||
        fail "this needs glibc $wanted_glibc or newer, and this machine has ${have:-none}." \
            "Nothing was changed"
}
wanted_glibc=@GLIBC@

# Take away what a failed run has made, but no more.
undo() {
    rm -rf "$folder.new"
    rmdir "$prefix/versions" "$prefix" 2>/dev/null || true
}

is_whole() {
    [ -f "$folder/files.sha256" ] || return
    for each in $addons; do
        [ -f "$folder/$each/files.sha256" ] || return
    done
    (cd "$folder" && sha256sum --check --status files.sha256)
}

unpack() {
    folder=$prefix/versions/$version
    made=no
    if [ -e "$folder" ]; then
        if is_whole; then
            say "$folder is there already, and whole"
            return
        fi
        say "$folder is not whole, and unpacked again"
    fi
    parent=$prefix
    while [ ! -e "$parent" ]; do parent=$(dirname "$parent"); done
    room=$(df -Pk "$parent" | sed -n '$s/.* \([0-9][0-9]*\)  *[0-9-]*% .*/\1/p')
    [ "${room:-$kilobytes}" -ge "$kilobytes" ] ||
        fail "$prefix has room for $room KB, and $kilobytes KB are needed. Nothing was changed." \
            "Make room, or name another folder with --prefix"
    why=$(mkdir -p "$prefix/versions" 2>&1) && why=$(mkdir_new 2>&1) || {
        undo
        fail "can't write to $prefix ($why). Nothing was changed. Run this as root, or name" \
            "another folder with --prefix"
    }
    say "unpacking version $version into $folder"
    trap 'undo; trap - EXIT; exit 130' INT TERM HUP
    # The status of tail tells nothing that the digests would not.
    if ! why=$(tail -n +"$lines" "$0" | tar -xzf - -C "$folder.new" 2>&1); then
        undo
        fail "can't unpack into $prefix ($(echo "$why" | head -n 1)). Nothing was changed"
    fi
    sync -f "$folder.new" 2>/dev/null || sync
    if [ -e "$folder" ]; then
        rm -rf "$folder.damaged"
        mv "$folder" "$folder.damaged"
    fi
    mv "$folder.new" "$folder"
    rm -rf "$folder.damaged"
    sync -f "$prefix/versions" 2>/dev/null || sync
    trap - INT TERM HUP
    made=yes
}

mkdir_new() {
    rm -rf "$folder.new" && mkdir "$folder.new"
}

# Leave a version that was never used no longer than the reason why it is not.
give_up() {
    if [ $made = yes ] && [ "$(readlink "$prefix/current" 2>/dev/null)" != "versions/$version" ]; then
        rm -rf "$folder"
        undo
        fail "version $version was not installed, see above; nothing was changed"
    fi
    fail "version $version is not put to use everywhere, see above; run this again"
}

command_link() {
    if [ "$prefix" = $usual ] && [ -w "${link%/*}" ] && { [ ! -e "$link" ] || ours "$link"; }; then
        ln -sf "$prefix/current/bin/firebird-cdc" "$link.new" && mv -f "$link.new" "$link"
        say "the command is $link"
    else
        say "the command is $prefix/current/bin/firebird-cdc"
    fi
}

ours() {
    [ "$(readlink "$1" 2>/dev/null)" = "$prefix/current/bin/firebird-cdc" ]
}

remember() {
    [ -n "$server" ] || return 0
    grep -qxF "$server" "$prefix/servers" 2>/dev/null || echo "$server" >>"$prefix/servers"
}

install() {
    supported
    unpack
    if [ $with_server = no ]; then
        "$folder/bin/firebird-cdc" upgrade "$@" || give_up
    else
        "$folder/bin/firebird-cdc" install ${server:+--server "$server"} "$@" || give_up
        remember
    fi
    command_link
}

upgrade() {
    [ -L "$prefix/current" ] ||
        fail "$prefix has no version to upgrade: say install, or name the folder with --prefix"
    supported
    unpack
    "$folder/bin/firebird-cdc" upgrade ${server:+--server "$server"} "$@" || give_up
    command_link
}

uninstall() {
    [ -e "$prefix/versions" ] || [ -L "$prefix/current" ] ||
        fail "$prefix has nothing of firebird-cdc; name the folder with --prefix"
    if [ -x "$prefix/current/bin/firebird-cdc" ]; then
        leave_servers || fail "nothing was taken out of $prefix: see above, and run this again"
    fi
    users=$(grep -ls " $prefix/versions/" /proc/[0-9]*/maps | cut -d/ -f3 | tr '\n' ' ' || true)
    [ -z "$users" ] ||
        fail "$prefix stays as long as processes run with it ($users): restart the servers, then" \
            "run this again"
    ! ours "$link" || rm "$link"
    rm -f "$prefix/current" "$prefix/servers"
    rm -rf "$prefix/versions"
    rmdir "$prefix" 2>/dev/null || say "$prefix stays: it has files that are not ours"
    # What options of before named, and nobody has used, as the packages do.
    rmdir /etc/firebird-cdc /var/lib/firebird-cdc/* /var/lib/firebird-cdc 2>/dev/null || true
    say "firebird-cdc is gone from $prefix"
}

# Those that were named when the plugin was put in, and those that are found.
leave_servers() {
    if [ -f "$prefix/servers" ]; then
        while read -r each; do
            [ ! -d "$each" ] || "$prefix/current/bin/firebird-cdc" uninstall --purge --server "$each" ||
                return
        done <"$prefix/servers"
    fi
    [ -z "$server" ] || "$prefix/current/bin/firebird-cdc" uninstall --purge --server "$server" || return
    "$prefix/current/bin/firebird-cdc" uninstall --purge --all
}

whole() {
    found=$({ sed -n '1,4p;5q' "$0"; tail -n+6 "$0"; } | sha256sum)
    [ "${found%% *}" = "$sum" ] || fail "$0 is damaged, nothing was changed: copy it again"
    for tool in tar gzip readlink; do
        command -v $tool >/dev/null || fail "this machine has no $tool, which is needed to unpack"
    done
}

main() {
    whole
    [ $# -gt 0 ] || { usage >&2; exit 2; }
    command=$1
    shift
    while [ $# -gt 0 ]; do
        case $1 in
            --prefix | --server)
                [ $# -gt 1 ] || fail "$1 needs a folder"
                case $2 in /*) ;; *) fail "$1 $2: give the full path" ;; esac
                [ "$1" = --prefix ] && prefix=${2%/} || server=$2
                shift 2
                ;;
            --no-server) with_server=no && shift ;;
            --) shift && break ;;
            *) usage >&2; fail "$1 is no option" ;;
        esac
    done
    case $command in
        install | upgrade | uninstall) $command "$@" ;;
        verify) say "$0 is whole: firebird-cdc $version" ;;
        -h | --help | help) usage ;;
        *) usage >&2; fail "$command is no command" ;;
    esac
    exit
}

main "$@"
