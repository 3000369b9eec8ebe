/** A small volume in a file, so that a test can fill it. */
import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { closeSync, mkdirSync, openSync, statfsSync, truncateSync, writeSync } from 'node:fs'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { until } from '@warren/kit/testing/until'

export const MIB = 1024 * 1024

/** The reason to skip, or false. */
export const cannotMount: string | false =
  spawnSync('sh', ['-c', 'test -e /dev/loop-control && command -v mkfs.ext4']).status === 0
    ? false
    : 'this machine has no loop devices'

export async function mountSmallDisk(bytes: number): Promise<string> {
  const folder = await mkdtemp(path.join(tmpdir(), 'warren-small-disk-'))
  const [image, mount] = [path.join(folder, 'image'), path.join(folder, 'disk')]
  mkdirSync(mount)
  closeSync(openSync(image, 'w'))
  truncateSync(image, bytes)
  for (const command of [
    ['mkfs.ext4', '-q', '-m', '0', image],
    ['mount', '-o', 'loop', image, mount],
  ]) {
    const { status, stderr } = spawnSync(command[0]!, command.slice(1), { encoding: 'utf8' })
    assert.equal(status, 0, stderr)
  }
  return mount
}

/** To be called after everything on it has stopped. */
export async function unmountSmallDisk(mount: string): Promise<void> {
  await until(() => spawnSync('umount', [mount]).status === 0, 'the small disk is unmounted')
  await rm(path.dirname(mount), { recursive: true })
}

export function freeBytes(folder: string): number {
  const { bavail, bsize } = statfsSync(folder)
  return bavail * bsize
}

/** Fills the file system until only so much is free. Can be repeated. */
export function fill(folder: string, leaveBytes = 0): string {
  const file = path.join(folder, 'ballast')
  const fd = openSync(file, 'a')
  const chunk = Buffer.alloc(MIB)
  try {
    while (freeBytes(folder) > leaveBytes) writeSync(fd, chunk)
  } catch (error) {
    assert.equal((error as NodeJS.ErrnoException).code, 'ENOSPC')
  } finally {
    closeSync(fd)
  }
  return file
}
