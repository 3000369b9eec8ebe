/**
 * A process with the network of a host in private namespaces: it leaves the machine's network, and what it creates
 * disappears when it exits. Each message names a task to run; the response is what the task measured.
 */
import { errorText } from '@warren/kit/error-text'
import { Tasks } from './tasks.ts'

export type TaskRequest = { task: keyof Tasks; params?: object }

const tasks = await Tasks.open()
process.on('disconnect', () => {
  tasks.close().then(
    () => process.exit(),
    (error) => {
      process.stderr.write(`bench: failed to tear the network down: ${errorText(error)}\n`)
      process.exit(1)
    },
  )
})
process.on('message', async ({ task, params }: TaskRequest) => {
  try {
    const value = await (tasks[task] as (params?: object) => Promise<unknown>)(params)
    process.send?.({ value })
  } catch (error) {
    process.send?.({ error: errorText(error) })
  }
})
process.send?.({ ready: true })
