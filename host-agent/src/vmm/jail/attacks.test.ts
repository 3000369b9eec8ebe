/**
 * A QEMU process that a guest has taken over reaches nothing. The attacks (jail/examples/attack) run where QEMU would:
 * with the same command line of the jail, a copy of its root directory and the tap of a slot. They run once more as the
 * same user without the jail, which shows that the attempts are real and that this machine has something to protect.
 */
import assert from 'node:assert/strict'
import { chownSync, cpSync, mkdirSync, readFileSync } from 'node:fs'
import path from 'node:path'
import { before, type TestContext, test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { Netd } from '../../net/netd-client.ts'
import { moveToFreshHost, randomInstance, skipReason } from '../../net/testing/host.ts'
import { FDS } from '../args.ts'
import { VmmLauncher } from '../launcher-client.ts'
import type { ProgramExit } from '../launcher-protocol.ts'
import { QEMU_BINARY } from '../machine.ts'
import { JAIL_BINARY, renderJailArgs } from './options.ts'
import { ensureJailRoot } from './root.ts'
import {
  ATTACK,
  ATTACK_IN_JAIL,
  ATTACKER_UID,
  listImpossible,
  listSuccesses,
  type Outcomes,
  openTargets,
  parseOutcomes,
} from './testing.ts'

const REPORT_FD = FDS.firstLayer

if (skipReason === false) before(moveToFreshHost)

test('everything that a taken over QEMU process could try fails', { skip: skipReason }, async (t) => {
  const target = await setUp(t)

  const jailed = await target.attack('jailed')
  const free = await target.attack('free')

  assert.ok(jailed.size >= 100, `${jailed.size} attempts`)
  assert.deepEqual(listSuccesses(jailed), [])
  assert.deepEqual(listImpossible(free, ["link a file to another user's"]), [])
})

async function setUp(t: TestContext) {
  const { folder, args } = await openTargets(t)
  const instance = randomInstance()
  const netd = new Netd(instance)
  const launcher = new VmmLauncher(instance)
  const exits: ProgramExit[] = []
  launcher.on('notice', ({ exited }) => exits.push(exited))
  t.after(async () => {
    await launcher.close()
    await netd.request('tearDownHost')
    await netd.close()
  })
  await netd.request('createSlot', { slot: 0, mtu: 1400, tapOwnerUid: ATTACKER_UID, packetsPerSecond: 100_000 })
  const { folder: root } = await ensureJailRoot(path.join(folder, 'cache'), QEMU_BINARY)
  cpSync(ATTACK, path.join(root, ATTACK_IN_JAIL))
  cpSync(ATTACK, path.join(folder, 'attack'))
  const [workFolder, socketFolder] = ['work', 'sockets'].map((name) => path.join(folder, name)) as [string, string]
  for (const own of [workFolder, socketFolder]) mkdirSync(own, { mode: 0o700 })
  chownSync(workFolder, ATTACKER_UID, ATTACKER_UID) // The folder of the sockets belongs to root once QEMU has made them.
  const targets = [...args, `fd=${FDS.work}`]

  const jail = renderJailArgs({
    ...{ root, accel: 'tcg', uid: ATTACKER_UID, diskMib: 10_240, socketFolder, workFolder, reportFd: REPORT_FD },
    cgroupProcs: [],
    diesWithHostAgent: true,
  })
  const commands = {
    jailed: { command: JAIL_BINARY, args: [...jail, ATTACK_IN_JAIL, ...targets], uid: 0, gid: 0, reportFd: REPORT_FD },
    free: {
      ...{ command: path.join(folder, 'attack'), args: targets, uid: ATTACKER_UID, gid: ATTACKER_UID },
      files: [{ fd: FDS.work, path: workFolder, flags: 'r' as const }],
    },
  }
  return {
    async attack(how: keyof typeof commands): Promise<Outcomes> {
      const stdoutPath = path.join(folder, how)
      const { pid } = await launcher.request('spawn', {
        ...commands[how],
        ...{ slot: 0, env: {}, stdoutPath, stderrPath: path.join(folder, 'errors') },
      })
      await until(() => exits.some((exit) => exit.pid === pid))
      return parseOutcomes(readFileSync(stdoutPath, 'utf8'))
    },
  }
}
