/**
 * A root file system without glibc, bash and coreutils: only a static busybox, as far from Debian as a container image gets.
 * Its tarball is what `warren images import` takes.
 */
import { execFileSync } from 'node:child_process'
import { chmodSync, copyFileSync, mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'

/** Debian's busybox-static under this name (tools/test-tools.sh). */
const BUSYBOX = 'busybox-static'

/** Without the name of the program it is the reason to skip. */
export function hasBusybox(): boolean {
  try {
    execFileSync(BUSYBOX, ['true'])
    return true
  } catch {
    return false
  }
}

export function makeBusyboxRoot(file: string): void {
  const root = mkdtempSync(path.join(tmpdir(), 'warren-busybox-'))
  try {
    for (const folder of [
      'bin',
      'sbin',
      'usr/bin',
      'usr/sbin',
      'etc',
      'root',
      'tmp',
      'var/tmp',
      'home',
      'dev',
      'proc',
      'sys',
      'run',
    ]) {
      mkdirSync(path.join(root, folder), { recursive: true })
    }
    chmodSync(path.join(root, 'tmp'), 0o1777)
    chmodSync(path.join(root, 'root'), 0o700)
    const program = execFileSync('which', [BUSYBOX], { encoding: 'utf8' }).trim()
    copyFileSync(program, path.join(root, 'bin/busybox'))
    chmodSync(path.join(root, 'bin/busybox'), 0o755)
    for (const applet of execFileSync(BUSYBOX, ['--list-full'], { encoding: 'utf8' }).split('\n')) {
      if (applet === '' || applet === 'bin/busybox' || applet === 'linuxrc') continue
      symlinkSync('/bin/busybox', path.join(root, applet))
    }
    writeFileSync(path.join(root, 'etc/passwd'), 'root:x:0:0:root:/root:/bin/ash\ndaemon:x:1:1::/:/bin/false\n')
    writeFileSync(path.join(root, 'etc/group'), 'root:x:0:\ndaemon:x:1:\n')
    execFileSync('tar', [
      '--create',
      '--owner=0',
      '--group=0',
      '--numeric-owner',
      '--file',
      file,
      '--directory',
      root,
      '.',
    ])
  } finally {
    rmSync(root, { recursive: true })
  }
}
