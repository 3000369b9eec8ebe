/** The worker thread of examine.ts. */
import { parentPort, workerData } from 'node:worker_threads'
import { readUploadFiles } from '../../uploads/read-tar.ts'
import { PlanError } from '../plan.ts'
import { detect } from './detect.ts'
import type { ExamineAnswer, ExamineInput } from './examine.ts'
import { isReadByDetector } from './project.ts'

const { file, settings, buildVars, images } = workerData as ExamineInput
const content = await readUploadFiles(file, isReadByDetector)
parentPort!.postMessage(examine())

function examine(): ExamineAnswer {
  try {
    return { plan: detect(content, settings, buildVars, images) }
  } catch (error) {
    // Anything else is a bug, and ends the thread with an error that its parent sees.
    if (error instanceof PlanError) return { refused: error.message }
    throw error
  }
}
