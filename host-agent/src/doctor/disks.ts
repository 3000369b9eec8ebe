/**
 * Checks that the S3 proxy can start, by starting it: in its jail and as its user, on loopback, for a moment. With a host agent it starts
 * when the first disk is mounted, and a failure is seen only then.
 */

import { readConfig } from '@warren/kit/config'
import { errorText } from '@warren/kit/error-text'
import { SETTINGS } from '../config.ts'
import { S3Proxy } from '../disks/s3-proxy-client.ts'
import { checkS3ProxyCode, startS3Proxy } from '../disks/s3-proxy-jail.ts'
import { readS3ProxyMachine } from '../disks/s3-proxy-machine.ts'
import type { Check, CheckResult, Machine } from './check.ts'

export const diskChecks = (machine: Machine): Check[] => [
  { name: 'S3 proxy', needed: 'recommended', run: () => checkS3Proxy(machine) },
]

export async function checkS3Proxy({ env, isRoot }: Machine, start = startS3Proxy): Promise<CheckResult> {
  const { disks, uid } = readConfig({ disks: SETTINGS.disks, uid: SETTINGS.s3ProxyUid }, env)
  if (!disks) return { ok: true, detail: 'disks are switched off (WARREN_DISKS)' }
  if (!isRoot) return { ok: true, detail: 'not checked: only root starts it' }
  const proxy = new S3Proxy(
    { log: { warn: () => {} }, start: (settings) => start(uid, settings), readMachine: () => readS3ProxyMachine() },
    { address: '127.0.0.1', port: 0, privateCidrs: [] },
  )
  try {
    checkS3ProxyCode()
    await proxy.start()
    return { ok: true, detail: 'it starts in its jail' }
  } catch (error) {
    return {
      ok: false,
      detail: `sandboxes cannot mount disks: ${errorText(error)}`,
      fix: 'fix what the text names, or set WARREN_DISKS=off if disks are not needed',
    }
  } finally {
    await proxy.close()
  }
}
