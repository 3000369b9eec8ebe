/** Reads the build configuration of the kernel, for features that cannot be tried. */
import { existsSync } from 'node:fs'
import { readFile } from 'node:fs/promises'
import { release } from 'node:os'
import { promisify } from 'node:util'
import { gunzip } from 'node:zlib'

export type KernelFeature = 'built in' | 'a module' | 'absent' | 'unknown'

/** `option` is without CONFIG_. If the configuration cannot be read, /sys/module shows whether `module` is loaded. */
export async function findKernelFeature(option: string, module: string): Promise<KernelFeature> {
  const config = await readKernelConfig()
  if (config !== undefined) return parseKernelConfig(config, option)
  return existsSync(`/sys/module/${module}`) ? 'a module' : 'unknown'
}

export function parseKernelConfig(config: string, option: string): KernelFeature {
  const value = new RegExp(`^CONFIG_${option}=(.)`, 'm').exec(config)?.[1]
  if (value === 'y') return 'built in'
  return value === 'm' ? 'a module' : 'absent'
}

/** Debian installs it in /boot; some kernels have it in /proc. */
async function readKernelConfig(): Promise<string | undefined> {
  try {
    return await readFile(`/boot/config-${release()}`, 'utf8')
  } catch {
    // Absent or not readable.
  }
  try {
    return (await promisify(gunzip)(await readFile('/proc/config.gz'))).toString()
  } catch {
    // This kernel has no /proc/config.gz.
    return undefined
  }
}
