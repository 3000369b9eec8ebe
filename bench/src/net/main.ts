/**
 * The network of a host in namespaces of its own, as a process of its own: it moves away from the machine's network, and
 * what it makes there ends with it. It does what it is asked and answers with what it measured.
 */
import { errorText } from '@warren/kit/text'
import { Tasks } from './tasks.ts'

export type NetQuestion = { task: keyof Tasks; params?: object }

const tasks = await Tasks.open()
process.on('disconnect', () => {
  tasks.close().then(
    () => process.exit(),
    (error) => {
      process.stderr.write(`bench: could not take the network down: ${errorText(error)}\n`)
      process.exit(1)
    },
  )
})
process.on('message', async ({ task, params }: NetQuestion) => {
  try {
    const value = await (tasks[task] as (params?: object) => Promise<unknown>)(params)
    process.send?.({ value })
  } catch (error) {
    process.send?.({ error: errorText(error) })
  }
})
process.send?.({ ready: true })
