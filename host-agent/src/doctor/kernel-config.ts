/** What a kernel was built with, for parts that cannot be tried. */
import { existsSync } from 'node:fs'
import { readFile } from 'node:fs/promises'
import { release } from 'node:os'
import { promisify } from 'node:util'
import { gunzip } from 'node:zlib'

export type KernelPart = 'built in' | 'a module' | 'absent' | 'unknown'

/** `option` without CONFIG_; `module` is its name in /sys/module, which tells when no config can be read. */
export async function findKernelPart(option: string, module: string): Promise<KernelPart> {
  const config = await readKernelConfig()
  if (config !== undefined) return parseKernelConfig(config, option)
  return existsSync(`/sys/module/${module}`) ? 'a module' : 'unknown'
}

export function parseKernelConfig(config: string, option: string): KernelPart {
  const value = new RegExp(`^CONFIG_${option}=(.)`, 'm').exec(config)?.[1]
  if (value === 'y') return 'built in'
  return value === 'm' ? 'a module' : 'absent'
}

/** Debian keeps it in /boot; other kernels offer their own. */
async function readKernelConfig(): Promise<string | undefined> {
  try {
    return await readFile(`/boot/config-${release()}`, 'utf8')
  } catch {
    // Not kept there, or not ours to read.
  }
  try {
    return (await promisify(gunzip)(await readFile('/proc/config.gz'))).toString()
  } catch {
    // A kernel that does not tell.
    return undefined
  }
}
