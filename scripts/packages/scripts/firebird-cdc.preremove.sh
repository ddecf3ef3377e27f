#!/bin/sh
# Before the files go. dpkg says remove, upgrade …; rpm how many versions will be left.
set -e
case $1 in
remove | 0) ;;
*) exit 0 ;;
esac
command=/opt/firebird-cdc/current/bin/firebird-cdc
if [ -x "$command" ]; then # rpm knows no purge, which would go by that list
    "$command" uninstall --all $([ "$1" = 0 ] || echo --left /var/lib/firebird-cdc/left)
fi
if [ -d /run/systemd/system ]; then
    systemctl --no-reload disable --now 'firebird-cdc-shipper@*.service' || true
fi
# With rpm, what nobody has edited goes with the package.
if [ "$1" = 0 ] && cmp -s /usr/share/firebird-cdc/default /etc/default/firebird-cdc; then
    rm -f /etc/default/firebird-cdc
fi
