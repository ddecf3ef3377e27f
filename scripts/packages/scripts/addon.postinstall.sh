#!/bin/sh
# Puts the add-on beside the version of firebird-cdc that it belongs to, in one step.
set -e
case $1 in
configure | 1 | 2) ;;
*) exit 0 ;;
esac
prefix=/opt/firebird-cdc
place=$prefix/versions/@VERSION@
[ ! -d "$place/@ADDON@" ] || exit 0
new=$place/.@ADDON@.new
rm -rf "$new"
cp -al "$prefix/package/@ADDON@" "$new" 2>/dev/null || {
    rm -rf "$new"
    cp -a "$prefix/package/@ADDON@" "$new"
}
sync -f "$new"
mv -T "$new" "$place/@ADDON@"
