/**
 * A guest that is a network namespace instead of a VM: a veth pair connects it to the slot's namespace in place of the
 * tap. What is measured through it is the host's cost; an emulated VM would be far slower than the host.
 */
import { type ChildProcess, spawn } from 'node:child_process'
import { until } from '@warren/kit/testing/until'
import { GUEST_GATEWAY, netnsName, TAP } from '../../../host-agent/src/net/names.ts'
import { renderSegmentTable } from '../../../host-agent/src/net/netd/nft/segment-table.ts'
import { runLine } from '../../../host-agent/src/net/testing/host.ts'
import { LIMITS } from '../../../host-agent/src/net/testing/test-network.ts'
import { runCommandOrThrow } from '../../../host-agent/src/run-command.ts'

export class NamespaceGuest {
  readonly #child: ChildProcess

  private constructor(child: ChildProcess) {
    this.#child = child
  }

  static async start(instance: string, slot: number, ip: string, mtu: number): Promise<NamespaceGuest> {
    const child = spawn('unshare', ['-n', 'sleep', 'infinity'], { stdio: 'ignore' })
    const own = await runLine('readlink /proc/self/ns/net')
    await until(async () => (await runLine(`readlink /proc/${child.pid}/ns/net`)) !== own)
    const inSlot = `ip -n ${netnsName(instance, slot)}`
    const inGuest = `nsenter -t ${child.pid} -n ip`
    await runLine(`${inSlot} link del ${TAP}`)
    await runLine(`${inSlot} link add ${TAP} mtu ${mtu} type veth peer name eth0 mtu ${mtu} netns ${child.pid}`)
    // The segmentation rules were deleted with the tap.
    const nft = ['netns', 'exec', netnsName(instance, slot), 'nft', '-f', '-']
    await runCommandOrThrow('ip', nft, { input: renderSegmentTable(LIMITS.packetsPerSecond) })
    for (const line of [
      `${inSlot} addr add ${GUEST_GATEWAY}/30 dev ${TAP}`,
      `${inSlot} link set ${TAP} up`,
      // Deleted with the tap.
      `${inSlot} route add ${ip} dev ${TAP}`,
      `${inGuest} addr add ${ip}/32 dev eth0`,
      `${inGuest} link set eth0 up`,
      `${inGuest} route add default via ${GUEST_GATEWAY} dev eth0 onlink`,
    ]) {
      await runLine(line)
    }
    return new NamespaceGuest(child)
  }

  /** Runs a Node program in it and returns what it prints. */
  run(program: string, args: readonly string[]): Promise<string> {
    return runNode(['nsenter', '-t', `${this.#child.pid}`, '-n'], program, args)
  }

  stop(): void {
    this.#child.kill('SIGKILL')
  }
}

/** `wrapper` is put in front of the command line, to run it in another namespace. */
export async function runNode(wrapper: readonly string[], program: string, args: readonly string[]): Promise<string> {
  const [first, ...rest] = [...wrapper, process.execPath, '-e', program, ...args]
  const child = spawn(first!, rest, { stdio: ['ignore', 'pipe', 'inherit'] }) // `first` is set: the list contains Node.
  let text = ''
  for await (const chunk of child.stdout) text += chunk
  return text
}
