/** An AI agent that has only a URL and a key works in a real VM through the official MCP client. */
import assert from 'node:assert/strict'
import { after, describe, test } from 'node:test'
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client'
import { until } from '@warren/kit/testing/until'
import { cannotRunVms, startUnlessSkipped, startVmInstance, VM_STORIES_LIMIT_MS } from './support/vm-instance.ts'

const warren = await startUnlessSkipped(cannotRunVms, () => startVmInstance())

describe('MCP with a real VM', { skip: cannotRunVms, timeout: VM_STORIES_LIMIT_MS }, () => {
  async function connect() {
    const client = new Client({ name: 'story', version: '1' })
    const headers = { Authorization: `Bearer ${warren.instance.key}` }
    await client.connect(
      new StreamableHTTPClientTransport(new URL(`${warren.instance.baseUrl}/mcp`), { requestInit: { headers } }),
    )
    after(() => client.close())
    return async (name: string, args: Record<string, unknown>) => {
      const { content, isError } = (await client.callTool({ name, arguments: args })) as ToolResult
      assert.ok(!isError, `${name}: ${content[0]?.text}`)
      return JSON.parse(content[0]!.text)
    }
  }

  test('an agent creates a sandbox, works in it, pauses, forks and destroys it', async () => {
    const call = await connect()
    const { id: sandbox_id } = await call('create_sandbox', { shape: 's-1vcpu-256mb' })
    await call('write_file', { sandbox_id, path: '/root/greeting', content: 'hello' })
    const { stdout } = await call('exec', { sandbox_id, cmd: 'sh', args: ['-c', 'uname -s; cat /root/greeting'] })
    const { process_id } = await call('start_process', {
      sandbox_id,
      cmd: 'sh',
      args: ['-c', 'read line; echo "got $line"; exit 4'],
    })
    await call('send_input', { sandbox_id, process_id, text: 'it\n' })
    let followed = await call('follow_process', { sandbox_id, process_id })
    const { output } = followed
    if (!followed.ended) followed = await call('follow_process', { sandbox_id, process_id, after: followed.seq })

    await call('pause_sandbox', { sandbox_id })
    await waitUntilStatus(sandbox_id, 'paused')
    const [child] = (await call('fork_sandbox', { sandbox_id })).sandboxes
    await waitUntilStatus(child.id, 'running')
    const file = await call('read_file', { sandbox_id: child.id, path: '/root/greeting' })

    assert.equal(stdout, 'Linux\nhello')
    assert.deepEqual([output, followed.ended, followed.exit_code], ['got it\n', true, 4])
    assert.equal(file.content, 'hello')
    for (const id of [sandbox_id, child.id]) {
      await call('destroy_sandbox', { sandbox_id: id })
      await waitUntilStatus(id, 'destroyed')
    }

    async function waitUntilStatus(id: string, status: string): Promise<void> {
      const hasStatus = async () => (await call('get_sandbox', { sandbox_id: id })).status === status
      await until(hasStatus, `${id} is ${status}`, 60_000)
    }
  })
})

type ToolResult = { content: { text: string }[]; isError?: boolean }
