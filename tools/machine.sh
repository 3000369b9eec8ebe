#!/bin/sh
# Installs what Warren needs beyond npm packages when root starts it: QEMU and other tools from Debian, and programs in
# Rust, which are built here. Run by setup.sh. With --services, only the jail in which the services of root run, for
# machines without virtual machines. Without root, nothing of it is needed.
set -eu
cd "$(dirname "$0")/.."

quiet=no
services_only=no
for option in "$@"; do
  case "$option" in
    --quiet) quiet=yes ;;
    --packages) list_only=yes ;;
    --services) services_only=yes ;;
  esac
done
. tools/packages.sh
. tools/rust-programs.sh

# --- Debian packages --------------------------------------------------------------------------------------------------

if [ "$services_only" = no ]; then
  want qemu-system-x86 have qemu-system-x86_64
  want qemu-utils have qemu-img
  want mmdebstrap have mmdebstrap
  want e2fsprogs have mke2fs
  want xz-utils have xz
  want zstd have zstd
  want iproute2 have ip
  want nftables have nft
  want libnftables1 have_file /usr/lib/*/libnftables.so.1
  want debian-archive-keyring have_file /usr/share/keyrings/debian-archive-keyring.gpg
  # Makes <ulid>-<port>.localhost resolve for programs that use the C library. Its installation edits /etc/nsswitch.conf.
  want libnss-myhostname have_file /usr/lib/*/libnss_myhostname.so.2
fi
want cargo have_new cargo
want gcc have cc
want libc6-dev have_file /usr/lib/*/libc.a
install_packages

# --- Programs in Rust -------------------------------------------------------------------------------------------------

build jail jail jail
if [ "$services_only" = no ]; then
  build guest-agent guest-agent 'guest agent'
  build read-only-ram libread_only_ram.so 'library for older versions of QEMU'
  build bucket-mount bucket-mount 'mount program of disks'
fi
