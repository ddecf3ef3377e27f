#!/bin/sh
# Runs after the files are unpacked, also if an earlier run was cut off anywhere: each step looks
# whether it is done. dpkg calls it with "configure OLD", rpm with the number of versions.
set -e
prefix=/opt/firebird-cdc
version='@VERSION@'
case $1 in
configure) is_first=$([ -n "$2" ] || echo yes) ;;
1) is_first=yes ;;
2) is_first= ;;
*) exit 0 ;;
esac

# A version of its own, linked to the package's files: it stays as it is while a server has it
# loaded, whatever becomes of the package. Its name means that it is whole.
place=$prefix/versions/$version
if [ ! -d "$place" ]; then
    new=$prefix/versions/.$version.new
    mkdir -p "$prefix/versions"
    rm -rf "$new"
    cp -al "$prefix/package" "$new" 2>/dev/null || {
        rm -rf "$new" # another file system, or one without hard links
        cp -a "$prefix/package" "$new"
    }
    rm -rf "$new/replay" "$new/spark" # those are for the other packages to place
    sync -f "$new"
    mv -T "$new" "$place"
fi

# Not part of the package, so that nobody is asked about it: whoever wrote one before keeps it.
if [ ! -e /etc/default/firebird-cdc ]; then
    mkdir -p /etc/default
    cp /usr/share/firebird-cdc/default /etc/default/firebird-cdc
fi
if command -v systemd-sysusers >/dev/null; then
    systemd-sysusers firebird-cdc.conf
    systemd-tmpfiles --create firebird-cdc.conf
fi
[ ! -d /run/systemd/system ] || systemctl daemon-reload

# Switches the versions and servers that have the plugin; restarts none.
"$place/bin/firebird-cdc" upgrade

if [ -n "$is_first" ]; then
    INSTALL=yes SERVER= ACTIVATE=yes
    . /etc/default/firebird-cdc
    if [ "$INSTALL" = yes ]; then
        code=0
        "$place/bin/firebird-cdc" install ${SERVER:+--server "$SERVER"} \
            $([ "$ACTIVATE" = yes ] || echo --inactive) || code=$?
        # An answer of ours: no server, several, or one that somebody has to look at first.
        [ "$code" -le 2 ] || exit "$code"
        [ "$code" -eq 0 ] ||
            echo "firebird-cdc: no server was changed. Once that is mended, run: firebird-cdc install"
    fi
fi
