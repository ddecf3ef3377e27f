#!/usr/bin/env bash
# Makes a clone ready to build, test and run: prerequisites, Debian libraries, .venv, native parts.
#
# Everything it fetches or builds lies in the clone (.cache/, .venv/); the machine itself is left
# as it is. Each step leaves a stamp of what it was made from and is done again when that changes,
# so a second run takes a second. `scripts/setup.sh --check` only looks at the prerequisites.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
CACHE=$ROOT/.cache
DEBIAN=$CACHE/debian
VENV=$ROOT/.venv
STAMPS=$CACHE/stamps
LOGS=$CACHE/logs
MULTIARCH=$(gcc -print-multiarch 2>/dev/null || true)
MULTIARCH=${MULTIARCH:-x86_64-linux-gnu}
# Room for .venv (1.1 GB), the jars (0.2 GB), the browser (0.3 to 0.6 GB) and running stacks.
NEEDED_MB=3000

# A folder of this repository is called packaging/: Python must not take it for the library of
# that name because it was started here.
export PYTHONSAFEPATH=1
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
# An activated environment or a foreign search path must not leak into ours, nor what has each
# process compile all that it imports.
unset PYTHONHOME PYTHONPATH VIRTUAL_ENV PYTHONDONTWRITEBYTECODE

if [ -t 1 ]; then BOLD=$'\e[1m' DIM=$'\e[2m' RED=$'\e[31m' OFF=$'\e[0m' CLEAR=$'\r\e[K'
else BOLD='' DIM='' RED='' OFF='' CLEAR=''; fi

say() { printf '%s\n' "${BOLD}setup${OFF}  $*"; }

fail() { printf '%s\n' "${RED}setup${OFF}  $*" >&2; exit 1; }

# step TITLE LOG COMMAND...: runs COMMAND with its output in LOG; shows that it lives.
step() {
    local title=$1 log=$LOGS/$2 begun=$SECONDS last='' shown=0 pid code=0
    shift 2
    "$@" >"$log" 2>&1 </dev/null &
    pid=$!
    # The command dies with us: Ctrl-C and kill reach it through this trap.
    trap 'kill "$pid" 2>/dev/null; wait "$pid" 2>/dev/null; exit 130' INT TERM
    [ -t 1 ] || say "$title"
    while kill -0 "$pid" 2>/dev/null; do
        sleep 0.2
        if [ -t 1 ]; then
            last=$(tail -n 1 "$log" 2>/dev/null | tr -d '\r' | cut -c 1-$((${COLUMNS:-80} - ${#title} - 20)))
            printf '%s' "${CLEAR}${BOLD}setup${OFF}  $title $((SECONDS - begun)) s ${DIM}${last}${OFF}"
        elif [ $((SECONDS - begun)) -ge $((shown + 15)) ]; then
            shown=$((SECONDS - begun))
            say "  still at it after $shown s: $(tail -n 1 "$log" | cut -c 1-100)"
        fi
    done
    wait "$pid" || code=$?
    trap - INT TERM
    if [ "$code" -ne 0 ]; then
        printf '%s' "$CLEAR"
        tail -n 30 "$log" >&2
        fail "$title failed (exit code $code); the whole output is in $log."
    fi
    [ ! -t 1 ] || printf '%s' "$CLEAR"
    [ ! -t 1 ] || say "$title: done in $((SECONDS - begun)) s"
}

# ---------------------------------------------------------------- prerequisites

problems=()
lacking() { problems+=("$1"); }

# at_least HAVE WANT: whether version HAVE is WANT or newer.
at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }

# find_python: the interpreter to build on, as the real file behind shims and links.
find_python() {
    local name found
    for name in python3 python3.13 python3.12 python3.11; do
        found=$(command -v "$name") || continue
        found=$("$found" -I -c '
import sys
import ctypes, ssl, venv, zlib
if (3, 11) <= sys.version_info < (3, 14) and sys.implementation.name == "cpython":
    print(getattr(sys, "_base_executable", None) or sys.executable)' 2>/dev/null) || continue
        [ -n "$found" ] && { printf '%s\n' "$found"; return; }
    done
}

PYTHON=$(find_python)
if [ -z "$PYTHON" ]; then
    if command -v python3 >/dev/null; then
        lacking "Python 3.11, 3.12 or 3.13 is needed, complete with ctypes, ssl and venv; $(command -v python3) is $(python3 --version 2>&1 || true). Get it with: apt-get install python3"
    else
        lacking "Python 3.11, 3.12 or 3.13 is missing. Get it with: apt-get install python3"
    fi
fi

if ! command -v gcc >/dev/null; then
    lacking "gcc is missing. Get it with: apt-get install gcc libc6-dev"
elif ! printf '#include <stdlib.h>\nint main(void){return EXIT_SUCCESS;}\n' |
    gcc -x c - -o /dev/null 2>/dev/null; then
    lacking "gcc can't compile and link a C program: the headers of the C library are missing. Get them with: apt-get install libc6-dev"
fi

command -v make >/dev/null || lacking "make is missing. Get it with: apt-get install make"

if ! command -v java >/dev/null; then
    lacking "Java 17 or newer is missing. Get it with: apt-get install openjdk-17-jre-headless"
else
    java_version=$(java -version 2>&1 | sed -n 's/.*version "\([0-9.]*\).*/\1/p' | head -n 1)
    at_least "${java_version:-0}" 17 ||
        lacking "Java 17 or newer is needed; $(command -v java) is ${java_version:-of unknown version}. Get it with: apt-get install openjdk-17-jre-headless"
fi

if ! command -v mvn >/dev/null; then
    lacking "Maven is missing. Get it with: apt-get install maven"
else
    # From the name of its library: asking mvn itself would start a Java machine each time.
    maven_home=$(dirname "$(dirname "$(readlink -f "$(command -v mvn)")")")
    maven_jar=$(find "$maven_home/lib/" -maxdepth 1 -name 'maven-core*.jar' 2>/dev/null | head -n 1)
    maven_version=$(basename "$(readlink -f "${maven_jar:-/}")" | sed -n 's/.*-\([0-9][0-9.]*\)\.jar/\1/p')
    [ -z "$maven_version" ] || at_least "$maven_version" 3.6 ||
        lacking "Maven 3.6 or newer is needed; $(command -v mvn) is $maven_version. Get it with: apt-get install maven"
fi

# What is there already needs no room again.
if [ ! -e "$STAMPS/python" ]; then
    free_mb=$(df -Pm "$ROOT" | awk 'NR == 2 {print $4}')
    [ "$free_mb" -ge "$NEEDED_MB" ] ||
        lacking "$NEEDED_MB MB of disk space are needed; the file system of $ROOT has $free_mb MB free. Free some, or clone to another disk."
fi

if [ ${#problems[@]} -gt 0 ]; then
    for problem in "${problems[@]}"; do printf '%s\n' "${RED}setup${OFF}  $problem" >&2; done
    exit 1
fi
[ "${1:-}" != --check ] || exit 0

mkdir -p "$DEBIAN" "$STAMPS" "$LOGS"
# Two set-ups of one clone at once (make test beside make demo) wait for one another.
exec 9>"$CACHE/setup.lock"
flock -n 9 || { say "waiting for another set-up of this clone"; flock 9; }

# ---------------------------------------------------------------- Debian packages

# fetch_debian PACKAGE...: unpacks Debian packages into .cache/debian, by the machine's own
# sources but with package lists of our own, so that nothing outside the clone changes.
apt_options=(-o APT::Sandbox::User=root -o Dir::State::lists="$DEBIAN/lists"
    -o Dir::Cache="$DEBIAN/apt" -o Acquire::Languages=none)

fetch_debian() {
    local folder=$DEBIAN/packages package
    command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || {
        echo "this machine has no apt-get and dpkg-deb; install by hand: $*"
        return 1
    }
    mkdir -p "$folder" "$DEBIAN/lists/partial" "$DEBIAN/apt/archives/partial"
    # The machine's lists first, as they may be fresh; sources that don't concern us may fail to
    # update, so the download decides, not the update.
    (cd "$folder" && apt-get -o APT::Sandbox::User=root download "$@") || {
        apt-get "${apt_options[@]}" update || true
        (cd "$folder" && apt-get "${apt_options[@]}" download "$@")
    }
    for package in "$@"; do
        dpkg-deb -x "$(find "$folder" -name "${package}_*.deb" | sort -V | tail -n 1)" "$DEBIAN/root"
    done
}

# loadable LIBRARY: whether the loader finds it on the machine itself.
loadable() { "$PYTHON" -I -c 'import ctypes, sys; ctypes.CDLL(sys.argv[1])' "$1" 2>/dev/null; }

debian_lib=$DEBIAN/root/usr/lib/$MULTIARCH
mkdir -p "$debian_lib"

if ! loadable libtommath.so.1 && [ ! -e "$debian_lib/libtommath.so.1" ]; then
    step "fetching libtommath1, which the Firebird engine needs" debian-tommath.log \
        fetch_debian libtommath1
fi

# The engine opens whichever release of ICU it finds, for every database in UTF-8.
icu_somewhere() {
    ldconfig -p 2>/dev/null | grep -q 'libicuuc\.so\.' ||
        [ -n "$(find "$debian_lib" -name 'libicuuc.so.*' -print -quit)" ]
}

fetch_icu() {
    local package
    package=$(apt-cache search --names-only '^libicu[0-9]+$' | cut -d ' ' -f 1 | sort -V | tail -n 1)
    if [ -z "$package" ]; then
        apt-get "${apt_options[@]}" update || true
        package=$(apt-cache "${apt_options[@]}" search --names-only '^libicu[0-9]+$' |
            cut -d ' ' -f 1 | sort -V | tail -n 1)
    fi
    [ -n "$package" ] || { echo "found no package libicuNN; install one by hand"; return 1; }
    fetch_debian "$package"
}

if ! icu_somewhere; then
    step "fetching the ICU library, which the Firebird engine needs" debian-icu.log fetch_icu
fi

python_facts=$("$PYTHON" -I -c '
import os, sys, sysconfig
get = sysconfig.get_config_var
name = "libpython3.%d.so" % sys.version_info[1]
folders = [get("LIBDIR") or "", os.path.join(get("LIBDIR") or "", get("MULTIARCH") or "")]
shared = next((d for d in folders if any(os.path.exists(os.path.join(d, name + end))
                                         for end in (".1.0", ""))), "")
include = sysconfig.get_path("include")
header = include if os.path.exists(os.path.join(include, "Python.h")) else ""
print("3.%d" % sys.version_info[1], shared or "-", header or "-", sys.version.replace(" ", "_"))')
read -r python_minor python_libdir python_include python_build <<<"$python_facts"

missing=()
[ "$python_libdir" != - ] || [ -e "$debian_lib/libpython$python_minor.so.1.0" ] ||
    missing+=("libpython$python_minor")
[ "$python_include" != - ] || [ -e "$DEBIAN/root/usr/include/python$python_minor/Python.h" ] ||
    missing+=("libpython$python_minor-dev")
if [ ${#missing[@]} -gt 0 ]; then
    apt-cache show "${missing[@]}" >/dev/null 2>&1 || [ "$python_minor" = 3.11 ] || fail \
        "$PYTHON has no shared libpython or no headers, and Debian here has no package for Python $python_minor. Build it with --enable-shared, or use Debian's own: apt-get install python3"
    step "fetching ${missing[*]}, to embed Python in the server" debian-python.log \
        fetch_debian "${missing[@]}"
fi
if [ "$python_libdir" = - ]; then
    export FIREBIRD_CDC_PYTHON_LIBDIR=$debian_lib
    ln -sfn "libpython$python_minor.so.1.0" "$debian_lib/libpython$python_minor.so"
fi
if [ "$python_include" = - ]; then
    export FIREBIRD_CDC_PYTHON_INCLUDE=$DEBIAN/root/usr/include/python$python_minor
    # Debian's pyconfig.h includes a second one by a path from the folder above.
    export C_INCLUDE_PATH=$DEBIAN/root/usr/include
fi
if [ -n "${FIREBIRD_CDC_PYTHON_LIBDIR:-}" ] || [ -e "$debian_lib/libtommath.so.1" ]; then
    export LD_LIBRARY_PATH=$debian_lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
fi

# The status page is tested in a real browser: Debian's Chromium without a window, with whatever it
# needs and the machine has not, in a folder of its own, so that nothing else loads these libraries.
BROWSER=$CACHE/browser
NO_BROWSER='Install the package chromium-headless-shell (or chromium) by hand, and run this again'

browser_packages() {
    LC_ALL=C apt-get "$@" install -s --no-install-recommends chromium-headless-shell |
        awk '$1 == "Inst" {print $2}'
}

fetch_browser() {
    local packages=() lists=(-o APT::Sandbox::User=root)
    command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || {
        echo "this machine has no apt-get and dpkg-deb. $NO_BROWSER"
        return 1
    }
    rm -rf "$BROWSER"
    mkdir -p "$BROWSER/packages" "$DEBIAN/lists/partial" "$DEBIAN/apt/archives/partial"
    mapfile -t packages < <(browser_packages "${lists[@]}")
    if [ ${#packages[@]} -eq 0 ]; then
        lists=("${apt_options[@]}")
        apt-get "${lists[@]}" update || true
        mapfile -t packages < <(browser_packages "${lists[@]}")
    fi
    [ ${#packages[@]} -gt 0 ] || { echo "found no package of it. $NO_BROWSER"; return 1; }
    (cd "$BROWSER/packages" && apt-get "${lists[@]}" download "${packages[@]}") || {
        apt-get "${apt_options[@]}" update || true
        (cd "$BROWSER/packages" && apt-get "${apt_options[@]}" download "${packages[@]}")
    }
    local package
    for package in "$BROWSER"/packages/*.deb; do dpkg-deb -x "$package" "$BROWSER/part"; done
    rm -rf "$BROWSER/packages"
    mv "$BROWSER/part" "$BROWSER/root"  # it is there once it is whole
}

if ! command -v chromium-headless-shell >/dev/null && ! command -v chromium >/dev/null &&
    [ ! -x "$BROWSER/root/usr/lib/chromium/chromium-headless-shell" ]; then
    step "fetching Chromium, in which the status page is tested" debian-browser.log fetch_browser
fi

# ---------------------------------------------------------------- .venv

# digest FILE...: one checksum over the contents of files, in the order given.
digest() { cat -- "$@" | sha256sum | cut -d ' ' -f 1; }

# up_to_date NAME VALUE: whether step NAME was last done from VALUE; done_from notes that it was.
up_to_date() { [ "$(cat "$STAMPS/$1" 2>/dev/null)" = "$2" ]; }
done_from() { printf '%s\n' "$2" >"$STAMPS/$1"; }

make_venv() {
    rm -rf "$VENV"
    if "$PYTHON" -I -c 'import ensurepip' 2>/dev/null && "$PYTHON" -m venv "$VENV"; then
        return
    fi
    # Debian keeps ensurepip in a package of its own: take pip from Debian's wheel of it instead.
    local wheel
    fetch_debian python3-pip-whl
    wheel=$(find "$DEBIAN/root/usr/share/python-wheels" -name 'pip-*.whl' | sort -V | tail -n 1)
    rm -rf "$VENV"
    "$PYTHON" -m venv --without-pip "$VENV"
    "$VENV/bin/python" "$wheel/pip" install pip
}

venv_key="$PYTHON $python_build"
if ! up_to_date venv "$venv_key" || [ ! -x "$VENV/bin/pip" ]; then
    step "making .venv with Python $python_minor" venv.log make_venv
    rm -f "$STAMPS/python" "$STAMPS/native"
    done_from venv "$venv_key"
fi

install_python() {
    # What pyproject.toml asks for to build comes first, so that builds need no isolation and a
    # change of a C file costs no new download.
    "$VENV/bin/python" -c '
import tomllib
with open("pyproject.toml", "rb") as file:
    print(*tomllib.load(file)["build-system"]["requires"], sep="\n")' >"$CACHE/build-requires.txt"
    "$VENV/bin/pip" install --progress-bar off -r "$CACHE/build-requires.txt"
    "$VENV/bin/pip" install --progress-bar off --no-build-isolation \
        --config-settings editable_mode=compat -e '.[dev]'
}

build_native() {
    "$VENV/bin/pip" install --progress-bar off --no-build-isolation --no-deps \
        --config-settings editable_mode=compat -e .
}

cd "$ROOT"
shopt -s nullglob
python_key=$(digest pyproject.toml)
# Not what the build itself makes.
native_sources=(setup[.]py native/[!_]*.c native/*.h native/[!_]*.py)
native_key="$(digest "${native_sources[@]}") ${FIREBIRD_CDC_PYTHON_LIBDIR:-}"
native_built() {
    [ ! -e setup.py ] || { local built=(native/*.so) && [ ${#built[@]} -ge 2 ]; }
}

if ! up_to_date python "$python_key"; then
    step "installing the Python packages and building native/" python.log install_python
    done_from python "$python_key"
    done_from native "$native_key"
elif ! up_to_date native "$native_key" || ! native_built; then
    step "building native/" native.log build_native
    done_from native "$native_key"
fi
